#!/usr/bin/env bash
# A Ray cluster with raydebug's gateway on hosts that share no folder, by ssh: one `raydebug node` on each.
#
#   deploy/hosts.sh up ./train n1 n2 n3        n1 is the head; ./train is a new folder here, for its address and the token
#   raydebug up --join ./train --through 'ssh n1'
#   raydebug run -- python train.py
#   deploy/hosts.sh down ./train               ends it on all hosts, and leaves nothing there
#
# Each host needs a login without a question, and the same Ray, Python and raydebug. The nodes outlive the connections.
# Where systemd ends a user's processes at logout: `loginctl enable-linger` on each host.
set -euom pipefail # m: each connection in the background is a group of processes, which is ended as one
ssh=(ssh -T -o BatchMode=yes -o ConnectTimeout=10 -o ControlMaster=no -o ClearAllForwardings=yes)
raydebug=${RAYDEBUG:-raydebug} # on the hosts: /opt/venv/bin/raydebug, say, where an ssh without a terminal has another PATH
options=${NODE_OPTIONS:-}      # of `raydebug node`: --gpus 8, --interface ib0, --ports 20000-20999

start() { # HOST OPTIONS...: start a node, whose standard input is ours, and return when it is up
  "${ssh[@]}" "$1" "umask 077; mkdir $there && cd $there || exit 1; exec 3<&0
    setsid nohup $raydebug node $options ${*:2} <&3 >node.log 2>&1 & echo \$! >pid; exec 3<&-
    until grep -qs ': up\$' node.log; do kill -0 \$(cat pid) 2>/dev/null || { tail -n 4 node.log >&2; exit 1; }; sleep 0.5; done"
}

end() { # HOST: end its node, which ends all that it has started; a number that another program has by now is left alone
  "${ssh[@]}" "$1" "cd $there 2>/dev/null || exit 0; pid=\$(cat pid 2>/dev/null)
    ours() { { tr '\\0' ' ' </proc/\$pid/cmdline; } 2>/dev/null | grep -q ' node '; }
    ours && kill \$pid; while ours; do sleep 0.2; done; rm -rf $there"
}

end_all() {
  local left=0 host
  for host in $hosts; do end "$host" || { left=1 && echo "$host: not ended; \`$0 down $here\` tries it again" >&2; }; done
  [ $left = 1 ] || rm -rf "$here"
  return $left
}

here=${2:?"usage: $0 up|down FOLDER [HOST...]"}
case $1 in
up)
  mkdir -m 700 "$here"
  there=/tmp/raydebug-hosts-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ') hosts=${*:3}
  echo "$there $hosts" >"$here/hosts"
  # Ctrl-C, or a node that does not come up: all of them end.
  trap '[ $? = 0 ] || { for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done; end_all || true; }' EXIT
  head=$3 started=()
  start "$head" --head --folder "$there/cluster" --nodes $(($# - 2)) </dev/null
  for file in cluster.json token; do
    (umask 077 && "${ssh[@]}" "$head" "cat $there/cluster/$file" >"$here/$file")
  done
  # The token goes through standard input: it is in no command line or variable.
  for host in "${@:4}"; do
    start "$host" --join - < <(cat "$here/cluster.json" "$here/token") &
    started+=($!)
  done
  for job in "${started[@]}"; do wait "$job"; done
  echo "up; next: raydebug up --join $here --through 'ssh $head'; $0 down $here ends it"
  ;;
down)
  read -r there hosts <"$here/hosts"
  end_all
  ;;
*) echo "usage: $0 up|down FOLDER [HOST...]" >&2 && exit 2 ;;
esac

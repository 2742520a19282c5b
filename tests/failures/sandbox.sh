# What each case runs after, in namespaces of its own: a machine node1 at 10.0.0.1, without a network, with an empty /tmp.
hostname node1
ip link set lo up
ip address add 10.0.0.1/32 dev lo
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
printf '127.0.0.1 localhost\n10.0.0.1 node1\n' >/tmp/hosts
mount --bind /tmp/hosts /etc/hosts

ray() { python -m ray.scripts.scripts "$@"; }

# limit memory 600M: this shell and its children get no more
limit() {
  local folder=/sys/fs/cgroup/$1/failures-case file=$1.max
  [ "$1" = memory ] && file=memory.limit_in_bytes
  mkdir "$folder" && echo "$2" >"$folder/$file" && echo "$BASHPID" >"$folder/cgroup.procs"
}

# disk FOLDER SIZE [ro]: a file system of its own
disk() { mkdir "$1" && mount -t tmpfs -o "size=$2,${3:-rw}" tmpfs "$1"; }

# take PORT: another program listens
take() {
  python -m http.server "$1" >/dev/null 2>&1 &
  sleep 1
}

# a root that may write only what is its own
without_override() { setpriv --bounding-set=-dac_override,-fowner "$@"; }

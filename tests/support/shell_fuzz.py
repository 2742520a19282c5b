# ruff: noqa: E501, E701, E704, F541, I001, UP031 - a grammar, one line for each form
# fmt: off
"""Random small scripts, from a grammar of what training scripts are written in. script_of(seed) -> (script, args, files, env)."""
from __future__ import annotations
import random

P = "python3 -m verl.trainer.main_ppo"
NAMES = ["A", "B", "C", "LR", "MODEL", "N"]
TEXTS = ["1", "2", "x", "a b", "qwen", "", "0", "true", "/d/m.bin", "k=v", "p,q", "1e-6"]


class G:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.tag = 0
        self.depth = 0
        self.fns = []
        self.files = {}
        self.args = tuple(self.r.choice(["a", "b c", "--lr=3", "--model", "m/x", "-v", "7"]) for _ in range(self.r.randint(0, 3)))
        self.in_fn = 0
        self.loops = 0

    def name(self): return self.r.choice(NAMES)

    def num(self): return str(self.r.randint(0, 9))

    def word(self):
        r = self.r
        k = r.randint(0, 21)
        n = self.name()
        if k < 4: return r.choice(["1", "2", "x", "qwen", "0"])
        if k == 4: return f'"{r.choice(TEXTS)}"'
        if k == 5: return f"'{r.choice(TEXTS)}'"
        if k == 6: return f"${n}"
        if k == 7: return f'"${n}"'
        if k == 8: return f'"${{{n}:-{r.choice(["d", "e f", "$" + self.name()])}}}"'
        if k == 9: return f"${{{n}:-{r.choice(['d', '$' + self.name()])}}}"
        if k == 10: return f'"${{{n}}}_{r.choice(["s", "t"])}"'
        if k == 11: return f"$(({self.arith()}))"
        if k == 12: return f'"${{{n}:+yes}}"'
        if k == 13: return f"${{{n}%{r.choice(['.*', '/*', 'x'])}}}"
        if k == 14: return f"${{{n}##{r.choice(['*/', '*.', 'q'])}}}"
        if k == 15: return r.choice(['"$1"', "$#", '"$@"' if False else '"$*"', '"${2:-z}"'])
        if k == 16: return f'"${{#{n}}}"'
        if k == 17: return f"${{{n}^^}}"
        if k == 18: return f'"${{ARR[0]}}"'
        if k == 19: return f'"${{ARR[*]}}"'
        if k == 20: return f"pre${n}post"
        return f'a"b ${n}"\'c d\''

    def arith(self):
        r = self.r
        a = r.choice([self.num(), "N", "N", "${#ARR[@]}", "(N + 1)"])
        return f"{a} {r.choice(['+', '-', '*'])} {self.num()}" if r.random() < .7 else a

    def cond(self):
        r = self.r
        n = self.name()
        k = r.randint(0, 15)
        if k == 0: return f'[ "${n}" = {self.word_simple()} ]'
        if k == 1: return f'[ -z "${n}" ]'
        if k == 2: return f'[ -n "${{{n}:-}}" ]'
        if k == 3: return f'[[ ${n} == {r.choice(["q*", "1", "*b", "x"])} ]]'
        if k == 4: return f'[[ "${n}" != {self.word_simple()} ]]'
        if k == 5: return f"(( {self.arith()} {r.choice(['>', '<', '==', '>='])} {self.num()} ))"
        if k == 6: return f'[ "$N" -{r.choice(["gt", "le", "eq"])} {self.num()} ]'
        if k == 7: return r.choice(["true", "false"])
        if k == 8: return f"! {self.cond() if self.depth < 4 else 'true'}"
        if k == 9: return f'[ "${n}" = x ] {r.choice(["&&", "||"])} [ -n "${self.name()}" ]'
        if k == 10: return f'[[ ${n} == x || -z ${self.name()} ]]'
        if k == 11: return f'[[ ${n} =~ ^[a-q] ]]'
        if k == 12: return f'[ $# -{r.choice(["gt", "eq"])} {r.randint(0, 2)} ]'
        if k == 13: return f'[ "${n}" = x -o "$N" -gt 3 ]'
        if k == 14: return f'[[ -n ${n} && ! ${self.name()} == 1 ]]'
        return f"test \"${n}\" != qwen"

    def word_simple(self): return self.r.choice(["1", "x", "qwen", '"a b"', '""', "true"])

    def train(self):
        self.tag += 1
        words = [f"tag={self.tag}"] + [f"k{i}={self.word()}" for i in range(self.r.randint(1, 3))]
        if self.r.random() < .25: words.append(self.r.choice(['"${ARR[@]}"', '"$@"', "${OPTS}", '${ARR[@]}']))
        pre = self.r.choice(["", "", "", f"FZ_X={self.word()} ", "nohup ", "env FZ_Y=1 "])
        post = self.r.choice(["", "", "", " 2>&1 | tee log", " > log 2>&1", " || exit 1"])
        sep = self.r.choice([" ", " ", " \\\n  "])
        return pre + P + " " + sep.join(words) + post

    def block(self, n=None):
        self.depth += 1
        out = "\n".join(self.stmt() for _ in range(n or self.r.randint(1, 3)))
        self.depth -= 1
        return out

    def stmt(self):
        r = self.r
        k = r.randint(0, 27 if self.depth < 3 else 13)
        n = self.name()
        if k <= 2: return f"{n}={self.word()}"
        if k == 3: return f"export FZ_{n}={self.word()}"
        if k == 4: return f"N=$(({self.arith()}))"
        if k == 5: return r.choice([f"ARR+=({self.word()} {self.word()})", f"ARR=({self.word()} k={self.word()})", f"ARR[0]={self.word()}"])
        if k == 6: return r.choice([f"{n}+={self.word()}", f'OPTS="$OPTS o={r.choice(["1", "2"])}"', f"unset {n}"])
        if k in (7, 8): return self.train()
        if k == 9: return f"{self.cond()} {r.choice(['&&', '||'])} {n}={self.word()}"
        if k == 10: return r.choice(["((N++))", "((N += 2))", "let N=N+1", ": ${%s:=%s}" % (n, r.choice(["u", "v w"])), "# it's a comment \"", "echo hi # x", ": <<'EOT'\n$(boom) ' \"\nEOT"])
        if k == 11: return f"{self.cond()} && {n}={self.word()} || {n}={self.word()}"
        if k == 12:
            if self.fns and not self.in_fn: return f"{r.choice(self.fns)} {self.word()} {self.word()}"
            return f"{n}={self.word()}"
        if k == 13:
            if self.in_fn: return r.choice([f"local {n}={self.word()}", "shift", "return", f"{n}=$1", "set -- p q"])
            if self.loops: return f"{self.cond()} && {r.choice(['break', 'continue'])}"
            return r.choice(["shift", "set -- r s", f"{n}=$1"])
        if k in (14, 15, 16):
            text = f"if {self.cond()}; then\n{self.block()}\n"
            if r.random() < .3: text += f"elif {self.cond()}; then\n{self.block()}\n"
            if r.random() < .5: text += f"else\n{self.block()}\n"
            return text + "fi"
        if k in (17, 18):
            self.loops += 1
            body = self.block()
            self.loops -= 1
            over = r.choice([f"{self.word()} {self.word()}", "1 2 3", '"${ARR[@]}"', '"$@"', "$OPTS", "x"])
            return f"for {n} in {over}; do\n{body}\ndone"
        if k == 19:
            self.loops += 1
            body = self.block()
            self.loops -= 1
            return f"N=0\nwhile (( N < 2 )); do\nN=$((N+1))\n{body}\nN=$((N+1))\ndone"
        if k in (20, 21):
            pats = r.sample(["x", "1|2", '"a b"', "q*", "''", "t?ue", "[0-9]"], 2)
            return f'case "${n}" in\n {pats[0]})\n{self.block()}\n;;\n {pats[1]}) {n}={self.word()};;\n' + (f" *)\n{self.block()}\n;;\n" if r.random() < .6 else "") + "esac"
        if k == 22: return f"(\n{self.block()}\n)"
        if k == 23: return f"{{\n{self.block()}\n}}"
        if k == 24 and not self.in_fn:
            f = f"f{len(self.fns)}"
            self.in_fn += 1
            saved, self.loops = self.loops, 0
            body = self.block()
            self.loops = saved
            self.in_fn -= 1
            self.fns.append(f)
            return f"{r.choice([f + '() {', 'function ' + f + ' {', f + ' () {'])}\n{body}\n}}\n{f} {self.word()}"
        if k == 25:
            self.tag += 1
            q = r.choice(["", "'"])
            return f"bash {r.choice(['', '-s '])}<<{q}EOF\n{P} tag={self.tag} k=${n} j=${{{self.name()}:-z}}\nEOF" if False else f"bash <<{q}EOF\n{P} tag={self.tag} k=${n} j=${{{self.name()}:-z}}\nEOF"
        if k == 26:
            f = f"s{len(self.files)}.sh"
            was = self.in_fn
            self.in_fn = 1
            self.files[f] = ""
            self.files[f] = self.block().replace("local ", "") + "\n"
            self.in_fn = was
            return r.choice([f"source ./{f}", f". ./{f} {self.word()}", f"bash {f} {self.word()}"])
        if k == 27:
            return f"eval '{n}=1'" if r.random() < .5 else f'C="{n}=2"; eval "$C"'
        return self.train()


def script_of(seed):
    g = G(seed)
    text = g.r.choice(["", "set -x\n", "#!/bin/bash\nset -eu\n" if False else "#!/usr/bin/env bash\n"])
    text += "".join(f"{n}={g.r.choice(['1', 'x', 'qwen', chr(34) + 'a b' + chr(34), '/d/m.bin'])}\n" for n in g.r.sample(NAMES[:5], 3)) + "N=3\nARR=(u 'v w')\n"
    text += g.block(g.r.randint(3, 7)) + "\n" + g.train() + "\n"
    return text, g.args, g.files, {}

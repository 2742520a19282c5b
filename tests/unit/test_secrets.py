"""Secrets: every kind of them, in every place that leaves a process; and what stays readable."""

# ruff: noqa: F841, S105, S106 - locals are what a snapshot is of, and the secrets are planted
from __future__ import annotations

import gzip
import json
import random
import shlex
import sys
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from raydebug import cli, process
from raydebug.cli import job as job_verbs
from raydebug.cluster import find
from raydebug.cluster.dashboard import Dashboard
from raydebug.cluster.state import Cluster, Remote
from raydebug.diagnose.read import Line
from raydebug.diagnose.run_diagnosis import as_finding, diagnose_run
from raydebug.errors import RaydebugError
from raydebug.jobs.submit import hide_command, shown_command
from raydebug.protocol import secret_kinds
from raydebug.protocol.secrets import Scrubber, is_secret, is_secret_name, scrubbed, without_secret_arguments
from raydebug.runs.record import read_document
from raydebug.worker import frames, records, snapshot, stacks
from raydebug.worker.saved_values import Values

TESTS = Path(__file__).parents[1]
LETTERS = "Abcdefghijklmnopqrstuvwxyz0123456789"


def made(start: str, length: int, letters: str = LETTERS) -> str:
    """Return a secret of this form; made here, so that no file holds what looks like one."""
    return start + (letters * 3)[:length]


HASH = "0123456789abcdef0123" * 2  # a key of Weights & Biases, or a commit

# A text and the secret in it. Such a text may be a value, a log line, an error, or a word of a command.
TEXTS = {
    "aws": ("id {}", made("AK" + "IA", 16, "ABCDEFGHIJKLMNOP")),
    "aws temporary": ("{}", made("AS" + "IA", 16, "ABCDEFGHIJKLMNOP")),
    "hex key": ("at {}", HASH),
    "after an escape": ("first\\n{}", made("sk" + "-", 24)),
    "slack hook": ("https://hooks.slack.com/services/{}", "T00000000/B00000000/" + "X" * 24),
    "bearer": ("Authorization: Bearer {}", made("", 30)),
    "basic": ("Authorization: Basic {}", "YWxpY2U6aHVudGVyMi1iYXNpYw=="),
    "raw header": ("Authorization: {}", "raw-authorization-value-123"),
    "header in quotes": ("curl -H 'Authorization: {}' x", "raw-authorization-value-456"),
    "cookie": ("Cookie: {}", "session=9f8e7d6c5b4a; path=x"),
    "URL": ("postgres://user:{}@host/db", "hunter22hunter"),
    "URL with /": ("postgres://user:{}@host/db", "pa/ss-w0rd-slash"),
    "URL with @": ("redis://:{}@host:6379/0", "p@ss-w0rd-at"),
    "URL user": ("https://{}@git.example.org/x.git", "0123token4567abcdef"),
    "signed URL": ("https://x.blob/y?sv=1&sig={}", "AbCdEf0123456789AbCdEf0123w%3D"),
    "azure": ("AccountName=a;AccountKey={}", "Zm9vYmFyYmF6cXV4Zm9vYmFyYg=="),
    "assigned": ("wandb.api_key={}", "k-9f8e7d6c5b"),
    "yaml": ("api_key: {}", "yaml-text-key-123"),
    "json": ('{{"HF_TOKEN": "{}", "a": 1}}', "json-text-token-1"),
    "repr": ("{{'password': '{}'}}", "it's"[:2] + "-repr-text-1"),
    "repr below a name": ("credentials={{'user': 'x', 'pw': '{}'}}", "pw-below-a-name"),
    "pair": ("[('password', '{}')]", "pair-in-a-text"),
    "option": ("run --hf-token {}", "option-space-tok-1"),
    "option in quotes": ("run --password '{}'", "three words here"),
    "option as items": ("['--password', '{}']", "option-as-items"),
    "escaped": ('{{\\"HF_TOKEN\\": \\"{}\\"}}', "escaped-json-token"),
    "camel": ("authToken={}", "camel-auth-token-1"),
    "azure's client": ("secret provided: {}", made("ab~8Q" + "~", 34)),
    "long web token": ("saw {}", made("ey" + "J", 40) + ".eyJ" + "a" * 2100 + ".signature-of-it"),
    "telegram": ("bot{}/sendMessage", "1234567890" + ":AA" + made("", 33)),
    "discord": ("{}", "M" + made("", 23) + ".Abcdef." + made("", 27)),
    "discord hook": ("https://discord.com/api/webhooks/123456789012345678/{}", made("", 68)),
    "PGP": ("-----BEGIN PGP PRIVATE" + " KEY BLOCK-----\n\n{}\n-----END PGP PRIVATE KEY BLOCK-----", made("MIIE", 40)),
    "kubeconfig": ("client-key-data: {}", made("LS0t", 40)),
    "variable of a pod": ('{{"name": "HF_TOKEN", "value": "{}"}}', "pod-variable-1"),
    "variable of a pod, escaped": ('{{\\"name\\": \\"HF_TOKEN\\", \\"value\\": \\"{}\\"}}', "pod-variable-3"),
    "aws configure": ("aws configure set aws_secret_access_key {}", "configured-key-1"),
    "header of words": ("X-Api-Key: {}", "header-of-words-1"),
    "setting of words": ("aws_secret_access_key = {}", "setting-of-words-1"),
    "ADO": ("Server=x;Uid=u;Pwd={};", "ado-password-1"),
    "session": ("JSESSIONID={} sessionid=x", "java-session-1"),
    "pydantic": ("Config(key=SecretStr('{}'))", "pydantic-secret-1"),
    "key file": ("-----BEGIN RSA PRIVATE" + " KEY-----\n{}\n-----END RSA PRIVATE" + " KEY-----", made("MIIE", 40)),
}
CHOSEN = random.Random(4)
FORM_LETTERS = {"a": LETTERS, "b": LETTERS + "+/_-", "c": "ABCD2345", "d": LETTERS + "=.", "h": HASH, "u": "ABC-"}
FORM_LETTERS["w"] = LETTERS + "_-"
for start, _, form in (kind.rpartition("|") for kind in secret_kinds.KINDS.split()):
    for longer in range(3):
        body = "".join(CHOSEN.choices(FORM_LETTERS[form[0]], k=int(form[1:]) + longer))
        TEXTS[f"{start} {longer}"] = (("got {}", "a={}", "'{}',")[longer], start + body)
COMMANDS = {
    "option": (["--token", "{}"], "y"),
    "a setting in a group of secrets": (("+secrets.openai={}",), "planted-9"),
    "option with =": (["--api-key={}"], "short"),
    "setting": (["trainer.password={}"], "hunter, 22"),
    "variable": (["HF_TOKEN={}", "python"], "v"),
    "new setting": (["+wandb.wandb_key={}"], "a b"),
    "a line as one word": (["python t.py --api-key {} trainer.password=planted-2 --lr=1"], "planted-1"),
    **{
        name: ([text], secret)
        for name, (text, secret) in TEXTS.items()
        if "\n" not in text and name != "header in quotes"
    },
}
SOURCES = (
    'login(password="{}")', "login(password=f'{}{{x}}')", 'password = """{}"""', 'c.get("password", "{}")',
    'c.setdefault("password", "{}")', 'c["HF_TOKEN"] = "{}"', 'add_argument("--password", default="{}")',
    'add_argument("--password", "-p", help="the word", default="{}")', 'password: str = "{}"',
    "passwords = ['{}']", 'auth = ("alice", "{}")', 'credentials = {{"user": x, "pw": "{}"}}', 'if token == "{}": pass',
    "headers = {{'Authorization': b'{}'}}", '["--hf-token", "{}"]',
)  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    """A text loses its secret and nothing else, and a second time loses nothing more."""
    text, secret = TEXTS[name]
    shown = scrubbed(text.format(secret))
    assert secret not in shown
    assert scrubbed(shown) == shown
    assert "(hidden)" in shown


@pytest.mark.parametrize("line", SOURCES)
def test_sources(line: str) -> None:
    """A literal of the source is hidden where the name before it is a secret's; the rest of the line stays."""
    secret = "planted-secret-1"
    shown = Scrubber(()).scrub(line.format(secret), source=True)
    assert secret not in shown
    assert shown.replace("(hidden)", secret).startswith(line.format(secret)[:8])


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(name: str) -> None:
    """A command loses its secrets word by word, and as the shell line of a job, in the job's log too."""
    words, secret = COMMANDS[name]
    command = ["env", "A=1", "python", "s.py", *(word.format(secret) for word in words), "lr=1"]
    shown = without_secret_arguments(command)
    assert [word for word in shown if secret in word.replace("python", "").replace("env", "")] == []
    assert (shown[:4], shown[-1], len(shown)) == (["env", "A=1", "python", "s.py"], "lr=1", len(command))
    line = f"cd /x && exec {shlex.join(command)}"
    assert shown_command(line) == shlex.join(shown)
    log = hide_command(f"Running entrypoint for job j1: {line}\nstep:1\n", line)
    assert log == f"Running entrypoint for job j1: cd /x && exec {shlex.join(shown)}\nstep:1\n"


def test_command_of_several_lines() -> None:
    """A job's log, read line by line, loses the secrets of a command that has several lines."""
    line = "cd /x && exec " + shlex.join(["python", "-c", "a = 1\nb", "--api-key", "planted-1"])
    log = f"Running entrypoint for job j1: {line}\nstep:1"
    shown = [hide_command(one, line) for one in log.split("\n")]
    assert "\n".join(shown) == hide_command(log, line) == log.replace("planted-1", "'(hidden)'")
    two = "cd /x && exec " + shlex.join(["--password", "planted\ntwice"])
    assert "planted" not in hide_command(two, two)


STAYS = (
    "max_tokens=4096 num_tokens: 20000 max_token=4096 max_num_batched_tokens=8192",
    "tokenizer=gpt2-large-abc tokenizer_path: /models/abc",
    "token_ids: [1, 2] next_token='hello' pad_token='<|pad|>' eos_token: <|im_end|> image_token: <image>",
    "data.prompt_key=prompt reward_fn_key='data_source' secret_reward=sparse cache_key: abcdef",
    "KeyError: 'critic/score' sorted(rows, key='loss_mean')",
    "http://127.0.0.1:8265/api/jobs tcp://10.0.0.1:6379 ssh://git@github.com/x/y.git https://alice@db.example/x",
    "author: alice compass=north token: None the record keeps no secrets: none of them",
    "--tokenizer abcdefg --token-file /run/token --max-token 4096 auth_mode=token RAY_AUTH_MODE=token",
    "+model.use_auth_token=true reward.access_key=null --token None --auth false",
    "tokens = ['the', 'cat'] keys: ['loss', 'reward'] special_tokens={'a': 'abcd'}",
    "model.path=/models/task-specialized-reward-model disk-cache-manager-of-engine risk-averse-policy-run",
    f"model.path=/hub/models--a--b/snapshots/{HASH} {HASH}/config.json git+https://github.com/a/b@{HASH}",
)  # fmt: skip


@pytest.mark.parametrize("text", STAYS)
def test_stays_readable(text: str) -> None:
    """The words of a training that resemble a secret's name stay as they are, in texts and in source."""
    assert scrubbed(text) == text
    assert Scrubber(()).scrub(text, source=True) == text
    assert without_secret_arguments(shlex.split(text.replace("'", ""))) == shlex.split(text.replace("'", ""))


def test_logs_stay_readable() -> None:
    """Not one of 1,700 lines of logs of healthy jobs is changed, and the time grows as the text does."""
    logs = gzip.decompress((TESTS / "failures/logs/healthy-training.log.gz").read_bytes()).decode()
    lines = [*logs.splitlines(), *(TESTS / "unit/healthy_logs.txt").read_text().splitlines()]
    lines += [f"step:{n} - actor/lr:1e-06 - response/max_tokens:{n * 7} - critic/key/mean:{n / 9}" for n in range(300)]
    assert [line for line in lines if scrubbed(line) != line] == []
    for name in ("key=[", "max_tokens=[", "token=[", '"\\'):  # minutes where each name is read to the end of its line
        text = name * 200_000
        assert len(scrubbed(text)) + len(Scrubber(()).scrub(text, source=True)) > 0


SECRET_NAMES = """
password user_password passwords PGPASSWORD db_pass MYSQL_PWD api_key apiKey apikeys x-api-key AccountKey pw
SharedAccessKey aws_access_key_id AccessKeyId wandb_key hf_token authToken access_tokens HF_TOKEN cookie Set-Cookie
auth basic_auth Authorization client_secret secret_value --hf-token wandb.api_key credentials"""
PLAIN_NAMES = """
key keys tokens max_tokens max_token tokenizer token_ids token_type pad_token next_token num_tokens prompt_key value
reward_fn_key secret_reward author compass pw_loss auth_mode default_value session_id api access"""
PLAIN_VARIABLES = "TOKENIZERS_PARALLELISM VLLM_MAX_TOKENS GOOGLE_APPLICATION_CREDENTIALS RAY_AUTH_TOKEN_PATH"


def test_names() -> None:
    """Names of secrets, in all their spellings; and names of a training that are none."""
    assert [one for one in SECRET_NAMES.split() if not is_secret_name(one)] == []
    assert [one for one in PLAIN_NAMES.split() if is_secret_name(one)] == []
    assert is_secret("MY_SERVICE_AUTH")
    assert [one for one in PLAIN_VARIABLES.split() if is_secret(one)] == []


# Snapshots: values


class Login:
    def __init__(self, secret: str) -> None:
        self.credentials = [secret]


Pair = namedtuple("Pair", "user password")
VALUES: dict[str, Any] = {
    "a dict under a name": lambda s: {"credentials": {"user": "x", "pw": s}},
    "a list under a name": lambda s: {"password": [s]},
    "plural": lambda s: {"api_keys": (s,), "user": "x"},
    "auth": lambda s: {"auth": ("alice", s)},
    "wandb_key": lambda s: {"wandb_key": s},
    "cookie": lambda s: {"cookie": s},
    "raw header": lambda s: {"headers": {"Authorization": s}},
    "pairs": lambda s: {"headers": [(b"authorization", s.encode())]},
    "bytes as a key": lambda s: {"form": {b"password": s.encode()}},
    "argv": lambda s: {"argv": ["--password", s]},
    "named tuple": lambda s: {"who": Pair("alice", s)},
    "attributes": lambda s: {"it": Login(s)},
    "memory": lambda s: {"password": memoryview(s.encode())},
    "proxy": lambda s: {"passwords": types.MappingProxyType({"alice": s})},
    "a key as lines": lambda s: {"pem": ["-----BEGIN RSA PRIVATE" + " KEY-----", s, "-----END"]},
    "reached before": lambda s: (lambda known: {"first": known, "credentials": known})({"pw": s}),
}


def document_of(named: dict[str, Any], text: str = "boom", line: str = "") -> Any:
    """Return the snapshot of a crash with these locals, of a program that has this line."""
    program = f"def f(named):\n    locals_ = named\n    {line}\n    raise RuntimeError(named.pop('text'))\nf(named)\n"
    space = {"named": {**named, "text": text}}
    path = space["named"].pop("path", "<program>")
    try:
        exec(compile(program, path, "exec"), space)
    except RuntimeError as error:
        frames = snapshot.frames_of(error)[:1]
        return snapshot.document_of(error, frames, snapshot.summarize(error, frames, "crash"), "main")
    raise AssertionError


@pytest.mark.parametrize("name", VALUES)
def test_values_of_snapshots(name: str) -> None:
    """A secret's name covers all that is below it, whatever holds it; keys and other values stay."""
    secret = "Tr0ub4dor-3-planted"
    document = document_of({**VALUES[name](secret), "plain": "stays-here"})
    text = json.dumps(document["values"])
    assert secret not in text
    assert '"redacted": true' in text
    assert "stays-here" in text


def test_token_of_a_tokenizer() -> None:
    """A token without a digit is hidden where it stands; other texts that have it stay as they are."""
    named = {"best_token": "<|answer|>", "reply": "so <|answer|> it", "api_token": "planted-1"}
    document = document_of(named, "planted-1")
    texts = [one.get("text") for one in document["values"]]
    assert "<|answer|>" not in texts
    assert "so <|answer|> it" in texts
    assert "planted-1" not in json.dumps(document)


def test_own_reprs() -> None:
    """Dates, numbers, proxies and memory are shown by Python's own repr; a subclass's is never called."""
    import datetime
    import decimal

    class Zone(datetime.tzinfo):
        def utcoffset(self, _: object) -> None:
            raise AssertionError

        def __repr__(self) -> str:
            raise AssertionError

    class Price(decimal.Decimal):
        def __repr__(self) -> str:
            raise AssertionError

    at = datetime.datetime(2026, 1, 2)  # noqa: DTZ001 - the repr is the point
    wanted = {
        "datetime.datetime(2026, 1, 2, 0, 0)": at,
        "datetime.date(2026, 1, 2)": at.date(),
        "datetime.timedelta(days=1)": datetime.timedelta(1),
        "Decimal('1.5')": Price("1.5"),
        "memoryview(b'abc')": memoryview(b"abc"),
    }
    values = Values(sys.maxsize, 10**6)
    found = values.add([*((text, value) for text, value in wanted.items()), ("odd", at.replace(tzinfo=Zone()))], 2)
    assert [values.saved[found[text]]["text"] for text in wanted] == [*wanted]
    odd = values.saved[found["odd"]]["text"]
    assert odd.startswith("datetime.datetime(2026, 1, 2, 0, 0, tzinfo=")
    assert odd.endswith("Zone)")
    proxy = values.add([("it", types.MappingProxyType({"a": 1}))], 2)["it"]
    assert values.saved[proxy]["length"] == 1


# Every place


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that verbs find, whose parts a test fills."""
    remote = Remote("http://127.0.0.1:1", "127.0.0.1:1", str(tmp_path / "token"))
    (tmp_path / "token").write_text("t")
    made = Cluster("here", "1", "joined", tmp_path, tmp_path, "", {}, 1, 0, "breakpoint", "core", 0.0, remote=remote)
    monkeypatch.setattr(find, "load_cluster", lambda _: made)
    return made


def place_snapshot(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _: object) -> str:
    program = tmp_path / "program.py"
    program.write_text(f"\n\n{text.splitlines()[0]!r}\n")
    monkeypatch.setattr(sys, "orig_argv", words)
    return json.dumps(document_of({"value": text, "deep": [{"x": text.encode()[:64]}], "path": str(program)}, text))


def place_records(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, _: object, __: object) -> str:
    monkeypatch.setattr(sys, "orig_argv", words)
    pause = records.describe_pause(sys._getframe(), "post-mortem", error=ValueError(text))
    return json.dumps([records.describe_process(), pause])


def place_jobs(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp: object, capsys: Any) -> str:
    row = {"submission_id": "j1", "status": "RUNNING", "entrypoint": f"cd /x && exec {shlex.join(words)}"}
    shown = job_verbs._describe({**row, "message": f"Job entrypoint failed: {text}"})  # type: ignore[typeddict-item]
    return f"{shown} {shlex.split(shown['command'])}"


def place_errors(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp: object, capsys: Any) -> str:
    from raydebug import render
    from raydebug.check.target import find_target
    from raydebug.cli.launch import find_command
    from raydebug.cli.run_plan import RunOptions

    failures = [
        RaydebugError(f"'{text}' failed", cause=text, fix=f"x {text}", code="x"),
        process.CommandFailed(words, 1, text, fix="y"),
    ]
    with pytest.raises(RaydebugError) as refused:
        find_target(words, Path(), "default", None)
    failures.append(refused.value)
    options = RunOptions.__new__(RunOptions)
    object.__setattr__(options, "command", words)
    with pytest.raises(RaydebugError) as refused:
        find_command(options, "last")
    failures.append(refused.value)
    for failure in failures:
        render.error(failure)
        render.error(failure, as_json=True)
    shown = capsys.readouterr()
    return shown.out + shown.err + "".join(map(str, failures))


def place_diagnoses(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp: object, capsys: Any) -> str:
    from raydebug.cli import diagnose as verb

    lines = ["Traceback (most recent call last):", '  File "/home/u/t.py", line 3, in f', f"ValueError: {text}"]
    answer = diagnose_run([Line("a.log", at, one, "p") for at, one in enumerate("\n".join(lines).splitlines())], None)
    verb._show(answer, types.SimpleNamespace(read_lines=3))  # type: ignore[arg-type]
    shown = capsys.readouterr()
    assert answer.diagnoses
    return json.dumps([answer.as_json(), *map(as_finding, answer.diagnoses)]) + shown.out


def place_runs(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp: object, capsys: Any) -> str:
    change = {"key": "a.b", "old": text, "new": text}
    run = read_document({"id": "x", "command": words, "variables": {"A": text}, "changes": [change]})
    return f"{run.command} {run.variables} {run.changes}"


def place_stacks(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> str:
    path = tmp_path / "line.py"
    path.write_text(f"x = [{text.splitlines()[0]!r}]\n")
    monkeypatch.setattr(sys, "orig_argv", words)
    return frames.line_at(str(path), 1) + json.dumps(stacks.collect()["argv"])


def place_debug_log(text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp: object, capsys: Any) -> str:
    heard: list[str] = []
    monkeypatch.setattr(process.log, "debug", lambda text, *given: heard.append(text % given))
    with pytest.raises(process.CommandFailed):
        process.run(["/no/such/program", *words[1:]], timeout_s=5)
    assert heard
    return "".join(heard)


PLACES = {name.removeprefix("place_"): place for name, place in globals().items() if name.startswith("place_")}


@pytest.mark.parametrize("place", PLACES)
def test_every_kind_in_every_place(
    place: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No kind of secret leaves through any place, as a text, and as a word of a command."""
    left = []
    for number, (name, (text, secret)) in enumerate(TEXTS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = text.format(secret)
        shown = PLACES[place](text, ["python", "s.py", text], monkeypatch, folder, capsys)
        left += [name] * (secret.splitlines()[0] in shown)
    for number, (name, (words, secret)) in enumerate(COMMANDS.items()):
        folder = tmp_path / f"c{number}"
        folder.mkdir()
        command = ["python", "s.py", *(word.format(secret) for word in words)]
        shown = PLACES[place]("nothing", command, monkeypatch, folder, capsys)
        left += [f"command {name}"] * (len(secret) > 1 and secret in shown)
    assert left == []


def test_usage_errors(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A usage error names the options that were given, and nothing of the command after `--`."""
    monkeypatch.setattr(
        sys, "argv", ["raydebug", "run", "--gpus", "nine", "--break=x", "--", "python", "--api-key", "y"]
    )
    with pytest.raises(SystemExit):
        cli.main()
    shown = capfd.readouterr().err.splitlines()
    assert shown[1:] == ["cause: the command line: raydebug run --gpus --break", "fix: see `raydebug run --help`"]


def test_job_verbs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`job list` hides the secrets of a command, as text and as JSON."""
    row = {"submission_id": "j1", "status": "RUNNING", "entrypoint": "cd /x && exec env HF_TOKEN=abc x --api-key def"}
    monkeypatch.setattr(Dashboard, "jobs", lambda _: [row])
    for verb in (["list"], ["list", "--json"]):
        cli._call(["job", *verb])
    shown = capsys.readouterr().out
    assert shown.count("env 'HF_TOKEN=(hidden)' x --api-key '(hidden)'") == 2


def test_run_says_the_job(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of `run` that names the job hides what its command has."""
    from raydebug.cli import launch
    from raydebug.cli.run_plan import RunPlan
    from raydebug.jobs import submit
    from raydebug.jobs.submit import Job

    said: list[str] = []
    monkeypatch.setattr(submit, "submit", lambda *_: "j1")
    monkeypatch.setattr(launch.render, "say", said.append)
    monkeypatch.setattr(launch.render, "out", said.append)
    job = Job(["env", "HF_TOKEN=abc", "x", "--api-key", "def"], "/x")
    launch._run_job(cluster, RunPlan("breakpoint", 0, job, None, []), detach=True)
    assert said[:2] == ["job j1: env HF_TOKEN=(hidden) x --api-key (hidden)", "j1"]

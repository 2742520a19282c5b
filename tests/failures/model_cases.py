"""Programs that fail to load models, data sets and accounts: `python model_cases.py NAME`; see cases.toml.

The tiny model and data of raydebug lie in the working folder.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
from pathlib import Path

MODEL, DATA = Path("model"), Path("data")


def edit(name, **values):
    file = MODEL / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def cut(file, keep=0.6):
    os.truncate(file, int(file.stat().st_size * keep))


def load_model(name="model", **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(name, **options)


def load_tokenizer(name="model"):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


# Chat templates


def ask():
    print(load_tokenizer().apply_chat_template([{"role": "user", "content": "1 + 1?"}], tokenize=False))


def no_template():
    (MODEL / "chat_template.jinja").unlink()
    ask()


def bad_template():
    (MODEL / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }")
    ask()


# Files of a model


def weights_cut():
    cut(MODEL / "model.safetensors")
    load_model()


def weights_pointer():
    (MODEL / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 988097824\n"
    )
    load_model()


def no_config():
    (MODEL / "config.json").unlink()
    load_model()


def no_weights():
    (MODEL / "model.safetensors").unlink()
    load_model()


def tokenizer_cut():
    cut(MODEL / "tokenizer.json")
    load_tokenizer()


def unknown_model():
    edit("config.json", model_type="qwen9", architectures=["Qwen9ForCausalLM"])
    load_model()


def flash_attention():
    load_model(attn_implementation="flash_attention_2")


def removed_name():
    from transformers import AutoModelForVision2Seq

    print(AutoModelForVision2Seq)


# The Hub


def hub_offline():
    load_tokenizer("nobody/nothing-7B")


def hub_download():
    from huggingface_hub import snapshot_download

    snapshot_download("nobody/nothing-7B")


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the Hub does where a token is refused, or a licence is not accepted."""

    status, code, words = 401, "GatedRepo", "Access to model nobody/gated-7B is restricted."

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("X-Error-Message", self.words)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - so called by http.server

    def log_message(self, *_):
        pass


def gated(name="nobody/gated-7B"):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    load_tokenizer(name)


def token_expired():
    Hub.code, Hub.words = "", "User Access Token is expired"
    gated("nobody/private-7B")


# Data sets


def load_rows(kind, file):
    from datasets import load_dataset

    return load_dataset(kind, data_files=str(file))["train"]


def no_data():
    load_rows("parquet", DATA / "none.parquet")


def not_parquet():
    (DATA / "train.parquet").write_text("prompt,answer\n1+1,2\n")
    load_rows("parquet", DATA / "train.parquet")


def mixed_types():
    Path("rows.jsonl").write_text('{"prompt": "1+1", "answer": 2}\n{"prompt": "1+1", "answer": {"value": 2}}\n')
    load_rows("json", "rows.jsonl")


def no_column():
    print(load_rows("parquet", DATA / "train.parquet").select_columns(["question", "answer"])[0])


# Accounts


def wandb_run():
    import wandb

    wandb.init(project="grpo")


if __name__ == "__main__":
    globals()[sys.argv[1]]()

"""The process that runs the llama.cpp server. It imports nothing of turnlog.

Its orders come as one line of JSON on standard input, which then stays open: when it closes, the process that
asked for the server is gone, and so the server goes too, whatever became of its parent. Its answer is one
line of JSON on standard output: ``{"url": …}`` or ``{"error": …, "missing": …}``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from importlib import import_module
from typing import Any

LINES_OF_LOG = 3
LOG_ERRORS = 1


def main() -> None:
    # An interrupt typed at the terminal is for the program that asked, which closes us when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "w")
    log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    orders = json.loads(sys.stdin.readline())
    sys.path[:] = orders["sys_path"]
    try:
        server = start(orders)
    except ImportError as error:
        reply(answer, error=str(error), missing=True)
    except Exception as error:
        reply(answer, error=first_lines(log) or str(error), missing=False)
    else:
        # What it prints from here on (one line for each refused request) has no reader.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        reply(answer, url=server.listening_address)
        sys.stdin.read()
    # Its destructor waits for requests that are still open; nothing here needs an orderly end.
    os._exit(0)


def start(orders: dict[str, Any]) -> Any:
    module: Any = import_module("xllamacpp")
    params = module.CommonParams()
    params.model.path = orders["weights"]
    params.model_alias = {orders["alias"]}
    params.n_ctx = orders["n_ctx"]
    # One slot has the whole window; requests that come together wait for one another.
    params.n_parallel = 1
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = orders["threads"]
        # Waiting threads sleep instead of burning a core each.
        cpu.poll = 0
    params.n_threads_http = 4
    params.warmup = False
    params.cache_ram_mib = orders["prompt_cache_mib"]
    params.use_jinja = True
    if orders["chat_template"] is not None:
        params.chat_template = orders["chat_template"]
    # Other programs and web pages on this machine can reach the port; they lack the key.
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [orders["api_key"]]
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.offline = True
    params.verbosity = LOG_ERRORS
    return module.Server(params)


def reply(answer: Any, **fields: Any) -> None:
    answer.write(json.dumps(fields) + "\n")
    answer.close()


def first_lines(log: Any) -> str:
    """What llama.cpp logged, without time stamps. The cause comes first, then what followed from it."""
    # Its log is written by a thread of its own.
    time.sleep(0.1)
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    return "; ".join(line.split(" E ", 1)[-1].strip() for line in lines[:LINES_OF_LOG])


if __name__ == "__main__":
    main()

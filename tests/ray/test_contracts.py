"""The names of Ray and debugpy that the code relies on: a test fails when an upgrade changes one."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import debugpy
import ray.util.debugpy
import ray.util.rpdb

import ray
from raydebug.settings import flavours
from raydebug.worker.records import STARTS_DRIVERS


def test_versions():
    """These contracts were read in exactly these versions; an upgrade of a pin requires reading them again."""
    assert debugpy.__version__ in ("1.8.6", "1.8.22")
    assert ray.__version__ in ("2.41.0", "2.44.1", "2.49.2", "2.52.1", "2.56.1", "2.60.0")
    assert flavours.tested_range("ray") == ("2.41.0", "2.60.0")
    assert flavours.tested_range("debugpy") == ("1.8.6", "1.8.22")


def test_ray_calls_its_debugger_through_what_we_replace():
    """Ray's breakpoint and post-mortem go through the two functions that worker/ray_debugger.py replaces."""
    assert "ray.util.ray_debugpy.set_trace(" in inspect.getsource(ray.util.rpdb.set_trace)
    assert "ray.util.ray_debugpy._post_mortem()" in inspect.getsource(ray.util.rpdb._post_mortem)
    assert ray.util.ray_debugpy is ray.util.debugpy


def test_ray_asks_for_each_function_before_its_first_run():
    """worker/ray_debugger.py replaces what Ray's workers call before a function's first run, also before `__init__`."""
    from ray._private.function_manager import FunctionActorManager
    from ray.dashboard.modules.job.job_supervisor import JobSupervisor

    assert JobSupervisor.__module__ == STARTS_DRIVERS
    assert list(inspect.signature(FunctionActorManager.get_execution_info).parameters) == [
        "self", "job_id", "function_descriptor",
    ]  # fmt: skip


def test_ray_asks_in_every_failed_task_whether_to_stop():
    """worker/import_hooks.py learns of a failed task by this question, which _raylet asks in each debugger mode."""
    import ray._raylet

    library = Path(ray._raylet.__file__).read_bytes()
    assert b"_is_ray_debugger_post_mortem_enabled" in library
    assert ray.util.pdb is ray.util.rpdb
    assert callable(ray.util.rpdb._is_ray_debugger_post_mortem_enabled)
    exceptions = (ray.exceptions.RayTaskError, ray.exceptions.RayActorError, ray.exceptions.TaskCancelledError)
    assert all(issubclass(one, ray.exceptions.RayError) for one in exceptions)
    assert "self._actor_init_failed = " in inspect.getsource(ray.exceptions.RayActorError.__init__)
    assert "self.traceback_str = traceback_str" in inspect.getsource(ray.exceptions.RayTaskError.__init__)


def test_ray_legacy_debugger_waits_in_what_we_replace():
    """The legacy debugger creates its session, announces it, waits in `listen` and resumes under these names."""
    source = inspect.getsource(ray.util.rpdb._connect_ray_pdb)
    assert source.index("_internal_kv_put(") < source.index("rdb.listen()") < source.index("_internal_kv_del(")
    assert '"RAY_PDB_{}".format(breakpoint_uuid)' in source
    assert {"listen", "set_trace", "post_mortem"} <= vars(ray.util.rpdb._RemotePdb).keys()
    assert "self._listen_socket" in inspect.getsource(ray.util.rpdb._RemotePdb.__init__)
    assert "rdb.set_trace(frame=frame)" in inspect.getsource(ray.util.rpdb.set_trace)
    assert "rdb.post_mortem()" in inspect.getsource(ray.util.rpdb._post_mortem)
    newer, older = ('"REMOTE_PDB_HOST") or get_localhost_ip()', '"REMOTE_PDB_HOST", "127.0.0.1")')
    assert newer in source or older in source, "cluster/environment.py drops it"


def test_ray_worker_counts_paused_threads():
    """This context manager maintains Ray's worker table."""
    from ray._private.worker import Worker

    assert "update_worker_num_paused_threads" in inspect.getsource(Worker.worker_paused_by_debugger)


def test_ray_starts_workers_of_another_python_by_their_program():
    """Ray executes the program of a worker, its first argument, in the Python that a context names."""
    from ray._private.runtime_env import context
    from ray._private.workers import setup_worker

    found = context.RuntimeEnvContext()
    assert (found.command_prefix, found.py_executable) == ([], sys.executable)
    assert found.override_worker_entrypoint is None
    source = Path(context.__file__).read_text()  # the function itself is replaced where our hook is
    assert "def exec_worker(self, passthrough_args: List[str], language: Language):" in source
    assert "[*self.command_prefix, *executable, *passthrough_args]" in source
    source = Path(setup_worker.__file__).read_text()
    assert "runtime_env_context.exec_worker(remaining_args, " in source


def test_ray_listens_on_loopback_by_this_variable():
    """RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 makes Ray use 127.0.0.1 as its node's address."""
    from ray._private import ray_constants, services

    assert ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR == "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    assert "ENABLE_RAY_CLUSTER" in inspect.getsource(services.get_node_ip_address)


def test_ray_reports_where_it_is_told_and_asks_no_cloud(monkeypatch, tmp_path):
    """This URL receives Ray's report that usage statistics are off; a file keeps Ray from querying the cloud."""
    try:
        from ray._common.usage import usage_lib
    except ImportError:  # before Ray 2.49
        from ray._private.usage import usage_lib

    monkeypatch.setenv("RAY_USAGE_STATS_REPORT_URL", "http://127.0.0.1:9/")
    assert usage_lib._usage_stats_report_url() == "http://127.0.0.1:9/"
    # Before Ray 2.44 Ray does not query the cloud.
    monkeypatch.setattr(usage_lib, "get_cloud_from_metadata_requests", lambda: 1 / 0, raising=False)
    path = tmp_path / "ray_bootstrap_config.yaml"
    path.write_text("provider: {type: local}\n")
    assert usage_lib.get_cluster_config_to_report(str(path)).cloud_provider == "local"


def test_ray_job_states():
    """These are all states of an ended job."""
    from ray.dashboard.modules.job.common import JobStatus

    from raydebug.cluster.dashboard import ENDED

    assert {s.value for s in JobStatus if s.is_terminal()} == ENDED


def test_ray_names_the_actor_of_a_job():
    """The actor in which a job's driver runs is identified by its name; it is not listed as a process to pause."""
    from ray.dashboard.modules.job.common import JOB_ACTOR_NAME_TEMPLATE

    from raydebug.gateway.control import JOB_ACTOR

    assert JOB_ACTOR_NAME_TEMPLATE.startswith(JOB_ACTOR)


def test_ray_tells_the_attempt_and_names_the_event_loops_thread():
    """A task can query its attempt number; an async actor's loop runs in a thread with this name."""
    import ray._raylet

    from raydebug.worker.frames import EVENT_LOOP

    assert callable(ray._raylet.CoreWorker.get_current_task_attempt_number)
    assert EVENT_LOOP.encode() in Path(ray._raylet.__file__).read_bytes()


# pydevd is imported in a separate process, because it changes its interpreter.
PYDEVD = """
import inspect
import re
from debugpy.server import api
import pydevd
from _pydevd_bundle import pydevd_api, pydevd_comm, pydevd_thread_lifecycle
from _pydevd_bundle._debug_adapter.pydevd_base_schema import BaseSchema
from _pydevd_bundle.pydevd_comm_constants import CMD_SET_BREAK, CMD_THREAD_SUSPEND
from _pydevd_bundle.pydevd_constants import get_current_thread_id, get_thread_id, PYDEVD_USE_SYS_MONITORING
from _pydevd_bundle.pydevd_net_command import NetCommand
def names(function): return list(inspect.signature(function).parameters)
assert names(pydevd.start_client) == ["host", "port"]
assert "s = start_client(host, port)" in inspect.getsource(pydevd.PyDB.connect)
assert names(pydevd.PyDB.do_wait_suspend)[:5] == ["self", "thread", "frame", "event", "arg"]
assert names(pydevd.PyDB.set_suspend)[:3] == ["self", "thread", "stop_reason"]
assert names(pydevd.PyDB.block_until_configuration_done) == ["self", "cancel"]
assert names(pydevd_thread_lifecycle.internal_run_thread) == ["thread", "set_additional_thread_info"]
assert names(pydevd_api.internal_step_in_thread)[:2] == ["py_db", "thread_id"]
assert "notify_event.wait(wait_timeout)" in inspect.getsource(pydevd.PyDB._do_wait_suspend)
assert "TIMEOUT_SLOW" in inspect.getsource(pydevd.PyDB._do_wait_suspend), "is resume_fast still needed?"
assert names(BaseSchema._translate_id_to_dap) == ["obj_id"]
assert names(NetCommand.__init__)[1:] == ["cmd_id", "seq", "text", "is_json"]
assert names(pydevd.settrace_forked) == ["setup_tracing"]
from _pydevd_bundle import pydevd_constants, pydevd_xml
assert (names(pydevd_constants.after_fork), names(pydevd.stoptrace), names(pydevd_xml.get_type)) == ([], [], ["o"])
assert "is_thread_alive(t)" in inspect.getsource(pydevd.PyDB.process_internal_commands)
assert "is_thread_alive(t)" in inspect.getsource(pydevd.PyDB.has_user_threads_alive)
assert "install_breakpointhook(" in inspect.getsource(__import__("debugpy._vendored.force_pydevd", fromlist=["x"]))
assert {"is_client_connected", "breakpoint"} <= {*dir(api)}
import pydevd_tracing
assert names(pydevd_tracing.set_trace_to_threads) == ["tracing_func", "thread_idents", "create_dummy_thread"]
assert hasattr(pydevd_tracing.TracingFunctionHolder, "_original_tracing")
for wanted in ("host", "port", "suspend", "trace_only_current_thread", "wait_for_ready_to_run",
               "block_until_connected", "patch_multiprocessing"):
    assert wanted in names(pydevd.settrace), wanted
# pydevd uses worker/reconnecting_socket.py as its socket and worker/suspended_threads.py as a listener.
reader, writer = inspect.getsource(pydevd_comm.ReaderThread), inspect.getsource(pydevd_comm.WriterThread)
assert set(re.findall(r"self[.]sock[.]([a-z]+)", reader + writer)) == {"recv", "shutdown", "close"}
assert set(re.findall(r"sock[.]([a-z]+)", inspect.getsource(NetCommand.send))) == {"sendall"}
assert set(re.findall(r"_client_socket[.]([a-z]+)", inspect.getsource(pydevd.PyDB))) <= {"close"}  # from 1.8.14 on
assert "listener.before_send(cmd.as_dict)" in writer
assert "listener.after_receive(dct)" in reader
assert hasattr(pydevd.PyDB, "add_dap_messages_listener")
assert hasattr(pydevd_api.PyDevdAPI, "set_dont_trace_start_end_patterns")
# worker/pydevd_session.py adds a request of our own.
from _pydevd_bundle import pydevd_process_net_command_json as commands
from _pydevd_bundle._debug_adapter import pydevd_base_schema, pydevd_schema
lookup = inspect.getsource(commands.PyDevJsonCommandProcessor.process_net_command_json)
assert 'method_name = "on_%s_request" % (request.command.lower(),)' in lookup
assert "on_request = getattr(self, method_name, None)" in lookup
assert "cmd = on_request(py_db, request)" in lookup
assert names(pydevd_base_schema.register_request) == ["command"]
asked = {"seq": 3, "type": "request", "command": "raydebugSay", "arguments": {"threadId": 1}}
pydevd_base_schema.register_request("raydebugSay")(pydevd_schema.Request)
read = pydevd_base_schema.from_dict(asked, update_ids_from_dap=True)
assert (read.seq, read.command, read.arguments) == (3, "raydebugSay", {"threadId": 1})
assert names(BaseSchema._translate_id_from_dap) == ["dap_id"]
assert names(pydevd.PyDB.post_method_as_internal_command)[:3] == ["self", "thread_id", "method"]
assert "self.method(dbg, *self.args, **self.kwargs)" in inspect.getsource(pydevd_comm.InternalThreadCommand.do_it)
print("ok")
"""


def test_pydevd_internals():
    """pydevd has every private name that worker/ calls, with the expected arguments."""
    done = subprocess.run([sys.executable, "-Xfrozen_modules=off", "-c", PYDEVD], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_pydevd_monitors_by_these_functions_from_python_3_12_on():
    """What suspended_threads.py calls on Python 3.12 is there, by its package; this test itself may run on 3.11."""
    pydevd = Path(debugpy.__file__).parent / "_vendored" / "pydevd"
    assert "    from _pydevd_sys_monitoring import pydevd_sys_monitoring\n" in (pydevd / "pydevd.py").read_text()
    source = (pydevd / "_pydevd_sys_monitoring" / "_pydevd_sys_monitoring.py").read_text()
    for function in ("start_monitoring(all_threads=False)", "stop_monitoring(all_threads=False)",
                     "update_monitor_events(suspend_requested:Optional[bool]=None)", "restart_events()"):  # fmt: skip
        assert f"\ndef{function}" in source.replace(" ", ""), function
    assert "if not monitor.get_tool(DEBUGGER_ID):" in source, "start_monitoring takes a tool that was given back"

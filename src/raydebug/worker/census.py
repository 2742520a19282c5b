"""Who holds the memory of this process: one walk over all objects, from names to what they lead to.

Each object counts once, under the first name that leads to it: Ray's actors, then modules, tasks of asyncio, frames of
threads, and last what only C code holds. The walk uses gc.get_referents, so it finds objects that `gc.freeze()` hides
from gc.get_objects() too (vLLM's server freezes its heap: vllm 0.28.0 utils/gc_utils.py). It runs no code of the
user's classes: only exact built-in types are opened, other objects by their referents and their plain `__dict__`.
It runs in a thread of its own, which rests often: other threads would wait up to 5 ms for the GIL each time. Over a
rest it holds objects by weak references: what the program drops ends at once. Lists and dicts are opened before that.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import io
import itertools
import mmap
import os
import re
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from raydebug.protocol.questions import Census, Holder, Nothing
from raydebug.protocol.secrets import scrubbed
from raydebug.worker.frame_locals import CO_OPTIMIZED, locals_of
from raydebug.worker.frames import is_program, start_thread
from raydebug.worker.memory_in_use import resident_bytes
from raydebug.worker.saved_values import type_name
from raydebug.worker.stacks import callers, stacks_of_tasks
from raydebug.worker.training_step import attributes_of

LIMIT_S = 25.0
MAX_HOLDERS = 400
REST_EVERY, REST_S = 2000, 0.0005  # objects between two rests
MANY = 100_000  # items of one container between two rests
MAX_NAME = 240  # characters of a holder
MAX_ROWS = 50_000  # of names; with more, later names are cut to their beginnings
MAX_SEEN = 2_000_000  # objects: the walk itself takes up to 150 bytes for each one
SMALL_DICT = 16  # entries; a larger one is a collection, whose keys are no names
LEAST_TEXT = 200  # characters; shorter ones are not counted
MAX_NODES, NODE_BYTES = 50_000, 1000  # of autograd graphs; about what a node itself takes
MAX_NAMED = 2_000  # instances of one class whose attributes are read by name: that makes their `__dict__`
# Types by id: a metaclass of the user's may have `__eq__` and `__hash__`.
_PLAIN = frozenset(
    map(id, (int, float, bool, complex, type(None), type(Ellipsis), range, slice, types.BuiltinFunctionType,
             types.CodeType, types.ModuleType, types.MethodDescriptorType,
             types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
             types.ClassMethodDescriptorType, types.MethodWrapperType))
)  # fmt: skip
_COLLECTIONS = frozenset(map(id, (list, tuple, set, frozenset, collections.deque)))
_TEXTS = frozenset(map(id, (str, bytes, bytearray)))
_CONTAINERS = _COLLECTIONS | {id(dict), id(types.CellType)}
_MODULE_PARTS = frozenset(("_modules", "_parameters", "_buffers"))  # torch.nn.Module's: a model is one holder
_COROUTINES = {id(types.CoroutineType): "cr", id(types.GeneratorType): "gi", id(types.AsyncGeneratorType): "ag"}
_BEGINNING = re.compile(r"[^\[.]*(?:[\[.][^\[.]*){0,2}")
_QUALNAME: Any = type.__dict__["__qualname__"]
_NAMES_OF_MODULE = vars(types.ModuleType)["__dict__"]
_NAMES_OF_TYPE: Any = type.__dict__["__dict__"]

_running = threading.Lock()
os.register_at_fork(after_in_child=_running._at_fork_reinit)  # type: ignore[attr-defined]


def census(_body: Nothing) -> Callable[[Callable[..., None]], object]:
    """Answer with who holds the memory of this process; two at a time would only slow each other down."""

    def take_alone() -> Census:
        with _running:
            return take()

    return answering(take_alone)


def answering(work: Callable[[], Any]) -> Callable[[Callable[..., None]], object]:
    """Return a function that answers a question with the result of work that takes time, from a thread of its own."""

    def run(answer: Callable[..., None]) -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - who asked gets the cause
            answer(None, f"{type(error).__name__}: {error}")
        else:
            answer(found)

    return lambda answer: start_thread(run, "raydebug-memory", answer)


def take(limit_s: float = LIMIT_S) -> Census:
    """Return who holds the memory of this process, as far as one sees in this time."""
    rss = resident_bytes()
    walk = _Walk(time.monotonic() + limit_s)
    with contextlib.suppress(_TimeIsOver):
        walk.run()
    rows = sorted(
        walk.rows.values(), key=lambda row: -row["bytes"] - NODE_BYTES * row["count"] * (row["kind"] == "graph")
    )
    for row in (rows := rows[:MAX_HOLDERS]):
        row["holder"] = scrubbed(row["holder"])  # keys of dicts are values of the program
    found: Census = {"holders": rows, "cut": walk.is_cut}
    del walk  # what it leaves behind is no growth of the program
    return {**found, "left": max(0, resident_bytes() - rss)}


class _TimeIsOver(Exception):
    pass


class _Walk:
    """One walk. `rows` is what was found, by name and kind."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self.rows: dict[tuple[str, str], Holder] = {}
        self.objects = 0
        self.is_cut = False
        self._waiting: collections.deque[tuple[Callable[[], Any], str]] = collections.deque()
        self._held: collections.deque[tuple[Any, str]] = collections.deque()
        self._seen: set[int] = set()
        self._buffers: set[int] = set()  # by address
        self._instances = collections.Counter[int]()  # by id of their class
        self._nodes: set[tuple[str, int]] = set()  # of autograd, whose Python objects live as long as they are held
        self._seen |= {id(self), id(self.__dict__), *map(id, self.__dict__.values())}
        torch: Any = sys.modules.get("torch")
        is_loaded = hasattr(torch, "Tensor") and hasattr(torch, "nn")  # not in the middle of its import
        self._torch = torch
        self._tensors = {id(torch.Tensor), id(torch.nn.Parameter)} if is_loaded else set()
        arrays = getattr(sys.modules.get("array"), "array", None)
        self._owners = {id(io.BytesIO), id(arrays)}  # types whose size is of what they own, too
        self._array: Any = getattr(sys.modules.get("numpy"), "ndarray", None)

    def run(self) -> None:
        """Walk; an owner of a name is the better name than what it leads to."""
        modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
        names = [_NAMES_OF_MODULE.__get__(module) for module in modules]
        self._seen |= set(map(id, names))  # a module that uses another one does not hold it
        ray: Any = sys.modules.get("ray._private.worker")  # ray 2.41 to 2.60: `Worker.actors`, by their ids
        actors = attributes_of(getattr(ray, "global_worker", None)).get("actors")
        for actor in list(actors.values()) if type(actors) is dict else ():
            self._push(actor, _QUALNAME.__get__(type(actor)))
        for those in sorted(names, key=lambda those: _label_of(those).endswith(".")):  # the user's files first
            self._push_named(those, _label_of(those))
        self._drain()
        for task, _, _ in stacks_of_tasks():
            self._push(task, "task")
        self._drain()
        for ident in sys._current_frames().keys() - {threading.get_ident()}:
            depths = itertools.takewhile(functools.partial(self._push_locals, ident), itertools.count())
            for _ in depths:  # the outer ones first, each for itself: their names stay the same for longer
                self._drain()
        for is_container, generation in ((False, None), (True, 2), (True, 1), (True, 0)):  # what is young may go soon
            unseen = self._unseen(is_container, generation)
            while unseen:
                reference, kind = unseen.popleft()
                self._push(reference(), f"(held outside of Python) {kind}")
                self._drain()

    def _push_locals(self, ident: int, depth: int) -> bool:
        """Push the locals of a thread's function, counted from the outermost one; return whether there is one."""
        frames = [*callers(sys._current_frames().get(ident))]
        self._seen.update(map(id, frames))  # not as frames of a traceback that the program keeps
        if depth < len(frames) and (frame := frames[-1 - depth]).f_code.co_flags & CO_OPTIMIZED:
            self._push_named(locals_of(frame), f"{frame.f_code.co_qualname}() ")
        return depth < len(frames)

    def _unseen(self, is_container: bool, generation: int | None) -> collections.deque[tuple[Callable[[], Any], str]]:
        self._seen.update(map(id, callers(sys._getframe())))
        # By loops of C, in which no other thread runs: what the program drops may not live on in a list of all objects.
        those = gc.get_objects(generation)
        unseen = {*map(id, those)} - self._seen
        found = [*itertools.compress(those, map(unseen.__contains__, map(id, those)))]
        del those
        return collections.deque(
            (_reference(one), type_name(type(one))) for one in found if (id(type(one)) in _CONTAINERS) is is_container
        )

    def _drain(self) -> None:
        while self._held or self._waiting:
            self.objects += 1
            if self.objects % REST_EVERY == 0:
                self._rest()
            self._open_next()

    def _open_next(self) -> None:
        if self._held:
            one, label = self._held.popleft()
        else:
            reference, label = self._waiting.popleft()
            one = reference()
        try:
            self._open(one, label)
        except _TimeIsOver:
            raise
        except Exception:  # noqa: BLE001 - closed, released, changed meanwhile: the rest is still seen
            pass

    def _rest(self) -> None:
        time.sleep(REST_S)
        self.is_cut = time.monotonic() > self._until_s or len(self._seen) > MAX_SEEN
        if self.is_cut:
            raise _TimeIsOver

    def _push(self, one: Any, label: str) -> None:
        kind = id(type(one))
        if kind in _PLAIN or id(one) in self._seen or (kind in _TEXTS and len(one) < LEAST_TEXT):
            return
        self._seen.add(id(one))
        if len(self.rows) >= MAX_ROWS:
            label = _beginning_of(label)
        if kind in _TEXTS:
            self._count(label, "bytes", type(one).__name__, len(one))
        elif kind in _CONTAINERS:
            self._held.append((one, label))
        else:
            self._waiting.append((_reference(one), label))

    def _push_all(self, those: Iterable[Any], label: str) -> None:
        label = label[:MAX_NAME]
        for number, one in enumerate(those, 1):
            self._push(one, label)
            if number % MANY == 0:
                self._rest()

    def _push_named(self, names: Any, label: str, before: str = "", after: str = "") -> None:
        for name, one in list(names.items()):
            self._push(one, _longer(label, f"{before}{name}{after}"))

    def _count(self, label: str, kind: str, what: str, size: int) -> None:
        row = self.rows.get((label, kind))
        if row is None and len(self.rows) >= MAX_ROWS:
            label = _beginning_of(label)
            row = self.rows.get((label, kind))
        if row is None:
            row = self.rows[label, kind] = {"holder": label, "kind": kind, "what": what, "count": 0, "bytes": 0}
            self._seen.add(id(row))
        row["count"] += 1
        row["bytes"] += size

    # What leads on

    def _open(self, one: Any, label: str) -> None:
        kind: Any = type(one)
        if id(kind) in self._tensors:
            self._tensor(one, label)
        elif kind is self._array:
            self._ndarray(one, label)
        elif kind is mmap.mmap:
            self._count(label, "mapped", "mmap", len(one))
        elif kind is dict:
            self._count(label, "objects", "dict", kind.__sizeof__(one))
            if len(one) > SMALL_DICT or not all(type(key) is str for key in one):
                self._push_all(gc.get_referents(one), _longer(label, "[*]"))
            else:
                self._push_named(one, label, "['", "']")
        elif id(kind) in _COLLECTIONS:
            self._count(label, "objects", kind.__name__, kind.__sizeof__(one))
            self._push_all(gc.get_referents(one), _longer(label, "[*]"))
        elif kind is types.FunctionType:
            self._function(one, label)
        elif id(kind) in _COROUTINES:
            self._frame(getattr(one, f"{_COROUTINES[id(kind)]}_frame"), label)
            self._push_all(gc.get_referents(one), label)
        elif kind is types.FrameType:  # of a traceback
            self._frame(one, label)
        elif id(kind) in self._owners:
            self._count(label, "bytes", kind.__name__, kind.__sizeof__(one))
        elif kind is functools._lru_cache_wrapper:
            self._push_all(gc.get_referents(one), f"{label} (lru_cache)[*]")
        elif kind is threading.local:
            self._local(one, label)
        elif issubclass(kind, type):
            self._push_named(_NAMES_OF_TYPE.__get__(one), f"{_QUALNAME.__get__(one)}.")
            self._push_all(gc.get_referents(one), label)
        else:
            self._instance(one, label)

    def _frame(self, one: types.FrameType | None, label: str) -> None:
        if one is not None and one.f_code.co_flags & CO_OPTIMIZED:
            self._push_named(locals_of(one), f"{label} {one.f_code.co_qualname}() ")

    def _function(self, one: types.FunctionType, label: str) -> None:
        names = one.__globals__
        if id(names) not in self._seen and type(names) is dict:  # as verl loads rewards
            self._seen.add(id(names))
            self._push_named(names, _label_of(names))
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=False):
            self._seen.add(id(cell))
            self._push_all(gc.get_referents(cell), f"{label}() closure {name}")
        arguments = one.__code__.co_varnames[: one.__code__.co_argcount]
        defaults = zip(reversed(arguments), reversed(one.__defaults__ or ()), strict=False)
        self._push_named({**dict(defaults), **(one.__kwdefaults__ or {})}, f"{label}() default ")
        self._push_named(one.__dict__, f"{label}.")

    def _local(self, one: Any, label: str) -> None:
        # CPython 3.11 and 3.12 Modules/_threadmodule.c: a dict of all threads, with a dict of attributes for each.
        for of_threads in gc.get_referents(one):
            for attributes in list(of_threads.values()) if type(of_threads) is dict else ():
                if type(attributes) is dict:
                    self._push_named(attributes, f"{label} (of a thread).")
            self._push(of_threads, label)

    def _instance(self, one: Any, label: str) -> None:
        kind = id(type(one))
        found = [child for child in gc.get_referents(one) if id(type(child)) not in _PLAIN and id(child) != kind]
        self._instances[kind] += 1
        if found and self._instances[kind] <= MAX_NAMED:
            attributes = attributes_of(one)
            self._seen.add(id(attributes))
            for name, value in list(attributes.items()):
                if type(name) is str and name in _MODULE_PARTS and type(value) is dict:
                    self._seen.add(id(value))
                    self._push_all(value.values(), label)
                else:
                    self._push(value, _longer(label, f".{name if type(name) is str else '?'}"))
        self._push_all(found, label)

    # What is counted

    def _tensor(self, one: Any, label: str) -> None:
        torch, of = self._torch, self._torch.Tensor
        with torch._C.DisableTorchFunctionSubclass(), torch._C._DisableTorchDispatch():
            if of.layout.__get__(one) is torch.strided and not of.is_meta.__get__(one):
                device = of.device.__get__(one).type
                self._storage(one, label, "tensor" if device == "cpu" else f"{device} tensor")
            if of.is_leaf.__get__(one):  # asked of others, `grad` warns
                self._push(of.grad.__get__(one), f"{label}.grad")
            elif (node := of.grad_fn.__get__(one)) is not None:
                self._graph(node, f"{label} (autograd graph)")
        self._push_named(one.__dict__, f"{label}.")

    def _storage(self, one: Any, label: str, kind: str) -> None:
        storage = self._torch.Tensor.untyped_storage(one)
        if storage.data_ptr() not in self._buffers:
            self._buffers.add(storage.data_ptr())
            view = f", a view of {storage.nbytes():,} bytes" if one.numel() * one.itemsize < storage.nbytes() else ""
            what = f"{list(one.shape)} {one.dtype}{view}".replace("torch.", "")
            self._count(label, kind, what, storage.nbytes())

    def _graph(self, node: Any, label: str) -> None:
        waiting = [node]
        while waiting and len(self._nodes) < MAX_NODES:
            node = waiting.pop()
            key = type(node).__name__, node._sequence_nr() if hasattr(node, "_sequence_nr") else id(node)
            if key in self._nodes:
                continue
            self._nodes.add(key)
            self._count(label, "graph", "nodes", 0)
            # torch 2.11 and 2.13: `_raw_saved_NAME` has a saved tensor in `data`, without a call of the user's hooks.
            for name in [name for name in dir(type(node)) if name.startswith("_raw_saved_")]:
                with contextlib.suppress(Exception):  # released by backward()
                    saved = getattr(node, name)
                    for tensor in saved if type(saved) in (tuple, list) else (saved,):
                        self._storage(tensor.data, label, "saved tensor")
            waiting += [child for child, _ in node.next_functions if child is not None]
            if len(self._nodes) % REST_EVERY == 0:
                self._rest()

    def _ndarray(self, one: Any, label: str) -> None:
        of = self._array
        if of.dtype.__get__(one).hasobject:
            self._push_all(of.tolist(of.reshape(one, -1)), _longer(label, "[*]"))
        root = one
        while type(of.base.__get__(root)) is of:
            root = of.base.__get__(root)
        base = of.base.__get__(root)
        self._push(base, label)
        address = of.__array_interface__.__get__(root)["data"][0]
        if address in self._buffers or type(base) in (mmap.mmap, memoryview) or id(type(base)) in self._tensors:
            return
        self._buffers.add(address)
        view = "" if root is one else f", a view of {of.nbytes.__get__(root):,} bytes"
        self._count(label, "array", f"{list(one.shape)} {one.dtype.name}{view}", of.nbytes.__get__(root))


def _reference(one: Any) -> Callable[[], Any]:
    """Return what leads to an object: a weak reference, or one that holds it."""
    try:
        return weakref.ref(one)
    except TypeError:
        return lambda: one


def _longer(label: str, part: str) -> str:
    """Return a longer name; a part that repeats is in it once, as the links of a list that grows."""
    return label if label.endswith(part * (3 if part == "[*]" else 1)) else f"{label}{part}"[:MAX_NAME]


@functools.lru_cache(1000)
def _beginning_of(label: str) -> str:
    """Return the beginning of a name, to its third part: a tree has a name for each of its nodes."""
    return _BEGINNING.match(label)[0]  # type: ignore[index] # it matches any text


def _label_of(names: dict[str, Any]) -> str:
    """Return what the names of a module begin with: `reward.py ` for the user's files, `torch.cuda.` for packages."""
    file, name = names.get("__file__"), names.get("__name__")
    if type(file) is str and is_program(file):
        return f"{os.path.basename(file)} "
    return f"{name}." if type(name) is str else "?."

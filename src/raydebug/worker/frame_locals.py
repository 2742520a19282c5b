"""The local variables of a frame that goes on running, without a trace in it.

On Python 3.11 and 3.12 `frame.f_locals` of a function is one dict, which stays in the frame: it keeps the values alive
until the function returns, and to ask for it again rewrites the dict that the program itself got from `locals()`. So
it is not asked for. From 3.13 on (PEP 667) it is a view.

Source: CPython 3.11 and 3.12 Objects/frameobject.c, 3.11 Include/internal/pycore_frame.h.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from types import CellType, FrameType
from typing import Any

CO_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: of functions; in others f_locals is the namespace itself
WORD_BYTES = 8
# CPython 3.11, in words. PyFrameObject: reference count, type, f_back, f_frame. _PyInterpreterFrame: f_func, f_globals,
# f_builtins, f_locals, f_code, frame_obj, previous, prev_instr, stacktop with is_entry and owner, localsplus.
F_FRAME, F_CODE, LOCALSPLUS = 3, 4, 9


def locals_of(frame: FrameType) -> Any:
    """Return the local variables of a frame, of any thread; those of a module or a class are its namespace itself.

    Of a function on a Python whose frames cannot be read there are none.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED or sys.version_info >= (3, 13):
        return frame.f_locals
    names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
    shared = {*code.co_cellvars, *code.co_freevars}
    values = _values_of(frame, [*names])
    found: dict[str, Any] = {}
    for name in names:
        try:
            value = next(values)
            found[name] = value.cell_contents if name in shared and type(value) is CellType else value
        except (ValueError, NameError):  # without a value
            continue
        except StopIteration:
            break
    return found


def _no_values(_frame: FrameType, _names: list[str]) -> Iterator[Any]:
    return iter(())


def _reader_of_3_11() -> Callable[[FrameType, list[str]], Iterator[Any]]:
    import ctypes

    count = sys.maxsize // WORD_BYTES // 2**16
    numbers = (ctypes.c_size_t * count).from_address(0)
    objects = (ctypes.py_object * count).from_address(0)

    def values_of(frame: FrameType, names: list[str]) -> Iterator[Any]:
        # Each value is one call of C, from the frame to the new reference, and none makes an object that the garbage
        # collector counts: no other thread runs in between, which might leave the frame.
        frames = map(operator.getitem, repeat(numbers), repeat(id(frame) // WORD_BYTES + F_FRAME))
        places = map(operator.add, map(operator.rshift, frames, repeat(3)), range(LOCALSPLUS, LOCALSPLUS + len(names)))
        return map(operator.getitem, repeat(objects), places)

    frame = sys._getframe()
    place = numbers[id(frame) // WORD_BYTES + F_FRAME] // WORD_BYTES + F_CODE
    return values_of if numbers[place] == id(frame.f_code) else _no_values


def _reader_of_3_12() -> Callable[[FrameType, list[str]], Iterator[Any]]:
    import ctypes

    get_variable = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)(
        ("PyFrame_GetVar", ctypes.pythonapi)
    )
    return lambda frame, names: map(get_variable, repeat(frame), names)


_values_of: Callable[[FrameType, list[str]], Iterator[Any]] = _no_values
try:
    if sys.version_info[:2] == (3, 12):
        _values_of = _reader_of_3_12()
    elif sys.version_info[:2] == (3, 11) and sys.maxsize == 2**63 - 1 and object.__basicsize__ == 2 * WORD_BYTES:
        _values_of = _reader_of_3_11()
except Exception:  # noqa: BLE001 - a Python without libffi, or one that may not use it
    pass

"""The tool of a training with planted stalls (planted_verl.py)."""

from __future__ import annotations

import os

import aiohttp
from verl.tools.function_tool import function_tool

SERVER = os.environ["SERVER"]


@function_tool
async def search(query: str) -> str:
    """Search for something.

    Args:
        query: what to search for.
    """
    async with aiohttp.ClientSession() as session, session.get(f"{SERVER}/search?key=not-to-be-shown") as answer:
        return await answer.text()

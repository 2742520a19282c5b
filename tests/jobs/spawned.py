"""A function that a spawned process can import: what `__main__` of a Ray worker holds, it cannot."""


def spawned(secret):
    breakpoint()
    print("child went on", secret, flush=True)

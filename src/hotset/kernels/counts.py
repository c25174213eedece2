"""Plain arithmetic for launches: Triton's own of the same names take ten microseconds a call on the host."""


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n, a positive number."""
    return 1 << (n - 1).bit_length()

"""Headers: what is packed is unpacked, anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.frame import HEADER_BYTES, BadFrame, Frame, pack, unpack

number = st.integers(0, 2**64 - 1)
frames = st.builds(
    Frame,
    session=st.integers(1, 2**64 - 1),
    answers=number,
    number=number,
    acked=number,
    losses=number,
    progress=number,
    payload=st.none() | st.binary(max_size=100),
)
EXAMPLE = pack(Frame(1, 2, 3, 4, 5, 6, b"payload"))


@given(frames)
def test_a_frame_survives_packing(frame):
    assert unpack(pack(frame)) == frame


@given(st.binary(max_size=200))
def test_random_bytes_are_a_frame_or_refused(data):
    try:
        frame = unpack(data)
    except BadFrame:
        return
    assert pack(frame) == data


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("empty", b""),
        ("short", EXAMPLE[: HEADER_BYTES - 1]),
        ("magic", b"XX" + EXAMPLE[2:]),
        ("version", EXAMPLE[:2] + b"\x02" + EXAMPLE[3:]),
        ("kind", EXAMPLE[:3] + b"\x07" + EXAMPLE[4:]),
        ("heartbeat with a payload", EXAMPLE[:3] + b"\x00" + EXAMPLE[4:]),
        ("session 0", EXAMPLE[:4] + bytes(8) + EXAMPLE[12:]),
    ],
)
def test_what_is_no_frame_of_this_version_is_refused(what, data):
    with pytest.raises(BadFrame):
        unpack(data)

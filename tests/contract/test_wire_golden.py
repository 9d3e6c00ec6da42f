"""The wire of a protocol version never changes: other processes were built for these bytes.

When a message has to change, raise `protocol.PROTOCOL_VERSION` and write the new version's file
(`python -m tests.contract.test_wire_golden`); the files of earlier versions stay as they are. Until
a version is released its file may be written anew.
"""

import json
from hashlib import sha256
from pathlib import Path

import msgspec

from protocol import PROTOCOL_VERSION
from protocol.codec import Codec, encode
from protocol.control_link import ControlToWorker, ToScheduler
from protocol.data_link import ToGateway, ToWorker
from protocol.frame import LINK_VERSION, Frame, pack
from tests.contract.samples import KINDS, SAMPLES

GOLDEN = Path(__file__).with_name("golden")
UNIONS = {
    "ToWorker": ToWorker,
    "ToGateway": ToGateway,
    "ControlToWorker": ControlToWorker,
    "ToScheduler": ToScheduler,
}


def current() -> dict[str, dict[str, str]]:
    """Bytes of each sample, and a digest of each union's JSON schema (which has the ranges)."""
    names = [f"{number:02d} {type(message).__name__}" for number, message in enumerate(SAMPLES)]
    return {
        "messages": {
            name: encode(message).hex() for name, message in zip(names, SAMPLES, strict=True)
        },
        "schemas": {name: _schema_digest(union) for name, union in UNIONS.items()},
    }


def _schema_digest(union: object) -> str:
    schema = json.dumps(_without_prose(msgspec.json.schema(union)), sort_keys=True)
    return sha256(schema.encode()).hexdigest()


def _without_prose(schema: object) -> object:
    if isinstance(schema, dict):
        return {
            key: _without_prose(value)
            for key, value in schema.items()
            if key != "description" or not isinstance(value, str)
        }
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    return schema


def golden(version: int) -> dict[str, dict[str, str]]:
    return json.loads((GOLDEN / f"wire_v{version}.json").read_text())


def test_there_is_a_sample_of_each_kind_of_message():
    assert {type(message) for message in SAMPLES} == KINDS


def test_samples_set_every_field_to_something_other_than_its_default():
    for message in SAMPLES:
        for field in msgspec.structs.fields(message):
            if not field.required:
                assert getattr(message, field.name) != field.default, (message, field.name)


def test_messages_are_the_bytes_of_this_protocol_version():
    expected = golden(PROTOCOL_VERSION)["messages"]
    for name, wire in current()["messages"].items():
        assert wire == expected[name], f"{name} changed: raise PROTOCOL_VERSION"
    assert len(expected) == len(SAMPLES)


def test_types_ranges_and_lengths_are_those_of_this_protocol_version():
    expected = golden(PROTOCOL_VERSION)["schemas"]
    for name, digest in current()["schemas"].items():
        assert digest == expected[name], f"{name} changed: raise PROTOCOL_VERSION"


def test_golden_bytes_decode_to_the_samples():
    codecs = [Codec(union) for union in UNIONS.values()]
    for wire, sample in zip(golden(PROTOCOL_VERSION)["messages"].values(), SAMPLES, strict=True):
        accepting = [codec for codec in codecs if isinstance(sample, codec._accepts)]
        assert [codec.decode(bytes.fromhex(wire)) for codec in accepting] == [sample]


def test_the_frame_header_is_the_bytes_of_this_link_version():
    frame = Frame(1, 2, 3, 4, 5, 6, b"\xc0")
    assert LINK_VERSION == 1
    assert pack(frame).hex() == (
        "544c0101"
        "0000000000000001" "0000000000000002" "0000000000000003"
        "0000000000000004" "0000000000000005" "0000000000000006"
        "c0"
    )  # fmt: skip


def test_versions_count_up_without_a_hole():
    written = {path.name for path in GOLDEN.glob("wire_v*.json")}
    assert written == {f"wire_v{version}.json" for version in range(1, PROTOCOL_VERSION + 1)}


if __name__ == "__main__":
    target = GOLDEN / f"wire_v{PROTOCOL_VERSION}.json"
    target.write_text(json.dumps(current(), indent=1) + "\n")
    print(target)

"""HOST:PORT as people write it."""

import pytest

from covspec.common.errors import InvalidRequest
from covspec.common.protocol.address import check_target, split_address


def test_host_and_port() -> None:
    assert split_address("[::1]:80", "--to") == ("::1", 80)
    assert split_address("edge.example.org:50051", "--edge") == ("edge.example.org", 50051)


@pytest.mark.parametrize("host", [300 * "a", f"{64 * 'b'}.org", "a..b", "\ud800"])
def test_what_no_host_can_be_called_is_refused_before_anybody_looks_it_up(host: str) -> None:
    with pytest.raises(InvalidRequest, match="--edge: .* cannot be the name of a host"):
        check_target(f"{host}:1")

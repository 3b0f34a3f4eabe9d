"""How the watches log in."""

from archipelago.operator.cluster.informer import LoginBackoff, server_of_pod


def test_a_pod_finds_its_api_server_without_dns() -> None:
    def told(host: str) -> str:
        return server_of_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"})

    assert told("10.96.0.1") == "https://10.96.0.1:443"
    assert told("fd00::1") == "https://[fd00::1]:443"


class Life:
    """A pace with its clock, and the API server's last answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer = float("-inf")
        self.pace = LoginBackoff(lambda: self.answer, lambda: self.now)

    def login(self) -> float:
        """How long this login has to wait."""
        pause = self.pace.pause()
        self.now += pause
        self.pace.logged_in()
        return pause


def test_a_token_that_ended_is_replaced_at_once() -> None:
    """It worked until then; so does the next, an hour later."""
    life = Life()
    assert life.login() == 0.0
    for _ in range(2):
        life.answer = life.now + 3000.0
        life.now += 3600.0
        life.pace.denied()
        assert life.login() == 0.0


def test_credentials_that_nobody_takes_are_read_ever_more_rarely() -> None:
    """1, 2, 4, 8 and 16 s, then each 30 s; an answer ends it."""
    life = Life()
    life.login()
    pauses = []
    for _ in range(8):
        life.now += 0.02
        life.pace.denied()
        pauses.append(life.login())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    life.answer = life.now + 1.0
    life.now += 60.0
    life.pace.denied()
    assert life.login() == 0.0


def test_an_outage_is_no_refusal() -> None:
    """The watches are started again with pauses of their own; a login adds none."""
    life = Life()
    for _ in range(5):
        assert life.login() == 0.0
        life.now += 30.0

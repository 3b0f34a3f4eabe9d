"""How the watches log in."""

from archipelago.operator.cluster.handlers import LoginBackoff, server_of_pod


def test_a_pod_finds_its_api_server_without_dns() -> None:
    def server(host: str) -> str:
        return server_of_pod({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"})

    assert server("10.96.0.1") == "https://10.96.0.1:443"
    assert server("fd00::1") == "https://[fd00::1]:443"


class Logins:
    """A back-off of logins with its clock, and the API server's last answer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer = float("-inf")
        self.backoff = LoginBackoff(lambda: self.answer, lambda: self.now)

    def login(self) -> float:
        """Return the wait before this login."""
        pause = self.backoff.pause()
        self.now += pause
        self.backoff.logged_in()
        return pause


def test_an_expired_token_is_read_again_at_once() -> None:
    """It worked until then; so does the next, an hour later."""
    logins = Logins()
    assert logins.login() == 0.0
    for _ in range(2):
        logins.answer = logins.now + 3000.0
        logins.now += 3600.0
        logins.backoff.denied()
        assert logins.login() == 0.0


def test_refused_credentials_are_read_again_with_a_doubling_delay() -> None:
    """1, 2, 4, 8 and 16 s, then each 30 s; an answer ends it."""
    logins = Logins()
    logins.login()
    pauses = []
    for _ in range(8):
        logins.now += 0.02
        logins.backoff.denied()
        pauses.append(logins.login())
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    logins.answer = logins.now + 1.0
    logins.now += 60.0
    logins.backoff.denied()
    assert logins.login() == 0.0


def test_an_outage_adds_no_delay_to_a_login() -> None:
    """The watches are started again with pauses of their own; a login adds none."""
    logins = Logins()
    for _ in range(5):
        assert logins.login() == 0.0
        logins.now += 30.0

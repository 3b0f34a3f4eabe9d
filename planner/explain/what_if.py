"""``--what-if``: change a ServingPlan as if its file were different.

    pool=h20:+64   pool=h20:x2   pool=h20:128     GPUs of a pool that exist
    rent=h20:+64   rent=h20:none                  GPUs of a pool that can be rented
    price=h20:1.5                                 $ per GPU and hour
    budget=+100    budget=600    budget=none      $ per hour for everything
    rate=llama:x2                                 requests per second of a model
    slo=llama:tpot=40   slo=llama:ttft=none       latency targets [ms]
    serving=llama:either                          phases of a model's islands
    link=wan:x2                                   Gbit/s between two classes of domains

A number sets, ``+`` and ``-`` add and subtract, ``x`` multiplies. The changed spec is
checked by the same rules as a file.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from itertools import chain, count
from typing import Any

from ..errors import InputError
from ..problem import DEFAULT_CLASS, domain_classes
from ..servingplan import ServingPlanResource, load_resource

NEW_DOMAIN = "what-if"
"""Network domain of nodes that are added to a pool with domains."""
NONE = "none"
SERVING = {word.casefold(): word for word in ("Disaggregated", "Collocated", "Either")}
LARGEST = 30
"""Most digits of a number on either side of the point; the rules allow far fewer."""


def changed(resource: ServingPlanResource, changes: tuple[str, ...]) -> ServingPlanResource:
    """Return the resource with all changes applied, in their order.

    Raises:
        InputError: a change is malformed; the message names the right form.
        SpecError: the changed spec breaks a rule.
    """
    body: dict[str, Any] = resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    apply: dict[str, Callable[[dict[str, Any], str, str], None]] = {
        "pool": _pool,
        "rent": _rent,
        "price": _price,
        "budget": _budget,
        "rate": _rate,
        "slo": _slo,
        "serving": _serving,
        "link": _link,
    }
    for text in changes:
        kind, _, rest = text.partition("=")
        if kind not in apply or not rest:
            raise _refuse(text, f"write KIND=...; kinds: {', '.join(apply)}")
        apply[kind](body["spec"], rest, text)
    return load_resource(body)


def _refuse(text: str, remedy: str) -> InputError:
    return InputError(f"--what-if {text}: {remedy}")


def _pool(spec: dict[str, Any], rest: str, text: str) -> None:
    pool, value = _pool_with_count(spec, rest, text)
    gpus = _number(Decimal(pool["count"]), value, text)
    if gpus != int(gpus):
        raise _refuse(text, f"{gpus} GPUs are no whole number of GPUs")
    rentable = pool.get("maxCount", pool["count"]) - pool["count"]
    if pool.get("domains"):
        pool["domains"] = _domains(pool, int(gpus), text)
    pool["count"] = int(gpus)
    _room(spec, pool, rentable)


def _pool_with_count(spec: dict[str, Any], rest: str, text: str) -> tuple[dict[str, Any], str]:
    """Return a pool with a stated count, and the value of the change."""
    pool, value = _named(spec["pools"], "pool", rest, text)
    if "count" not in pool:
        raise _refuse(
            text,
            f"pool {pool['name']} takes its nodes from a nodeSelector: state count in the file",
        )
    return pool, value


def _rent(spec: dict[str, Any], rest: str, text: str) -> None:
    pool, value = _pool_with_count(spec, rest, text)
    old = Decimal(pool.get("maxCount", pool["count"]) - pool["count"])
    new = Decimal(0) if value == NONE else _number(old, value, text)
    if new != int(new):
        raise _refuse(text, f"{new} GPUs are no whole number of GPUs")
    _room(spec, pool, int(new))


def _room(spec: dict[str, Any], pool: dict[str, Any], rentable: int) -> None:
    """Set the rentable GPUs of a pool; remove the pool if it has no GPUs at all."""
    room = pool["count"] + rentable
    pool.pop("maxCount", None)
    if rentable:
        pool["maxCount"] = room
    if pool.get("islandSizes"):
        pool["islandSizes"] = [size for size in pool["islandSizes"] if size <= room]
    if room:
        return
    # Pipelines and links that refer to the pool or its classes go with it.
    spec["pools"].remove(pool)
    spec["pipelines"] = [p for p in spec.get("pipelines", ()) if pool["name"] not in p["pools"]]
    classes = {c for p in spec["pools"] for c in _classes(p)}
    if links := spec.get("network", {}).get("links"):
        spec["network"]["links"] = [link for link in links if classes.issuperset(link["classes"])]


def _classes(pool: dict[str, Any]) -> tuple[str, ...]:
    return domain_classes(d.get("class", DEFAULT_CLASS) for d in pool.get("domains", ()))


def _domains(pool: dict[str, Any], gpus: int, text: str) -> list[dict[str, Any]]:
    """Add nodes as a domain of their own, or remove nodes from the last domains first."""
    nodes, rest = divmod(gpus - pool["count"], pool["gpusPerNode"])
    if rest:
        raise _refuse(text, f"pool {pool['name']} has nodes of {pool['gpusPerNode']} GPUs")
    if any(domain.get("sharedNodes") for domain in pool["domains"]):
        raise _refuse(text, f"pool {pool['name']} has shared nodes: change its nodes in the file")
    domains = sorted(pool["domains"], key=lambda domain: str(domain["name"]))
    if nodes > 0:
        classes = _classes(pool)
        if len(classes) > 1:
            listed = f"pool {pool['name']} has domains of the classes {' and '.join(classes)}"
            raise _refuse(text, f"{listed}: add the nodes in the file")
        names = {domain["name"] for domain in domains}
        candidates = chain([NEW_DOMAIN], (f"{NEW_DOMAIN}-{number}" for number in count(2)))
        name = next(candidate for candidate in candidates if candidate not in names)
        return [*domains, {"name": name, "nodes": nodes, "class": classes[0]}]
    while nodes < 0 and domains:
        taken = min(-nodes, domains[-1]["nodes"])
        nodes += taken
        domains[-1] = {**domains[-1], "nodes": domains[-1]["nodes"] - taken}
        if not domains[-1]["nodes"]:
            domains.pop()
    return domains


def _price(spec: dict[str, Any], rest: str, text: str) -> None:
    pool, value = _named(spec["pools"], "pool", rest, text)
    _set(pool, "pricePerGPUHour", value, text)


def _budget(spec: dict[str, Any], rest: str, text: str) -> None:
    if rest == NONE:
        spec.pop("budgetPerHour", None)
        return
    if spec.get("budgetPerHour") is None and rest[0] in "+-x":
        raise _refuse(text, "the plan has no budgetPerHour to change; write budget=AMOUNT")
    _set(spec, "budgetPerHour", rest, text)


def _rate(spec: dict[str, Any], rest: str, text: str) -> None:
    model, value = _named(spec["models"], "model", rest, text)
    if model.get("requestsPerSecond") is None:
        raise _refuse(text, f"model {model['name']} states no requestsPerSecond to change")
    _set(model, "requestsPerSecond", value, text)


def _slo(spec: dict[str, Any], rest: str, text: str) -> None:
    model, target = _named(spec["models"], "model", rest, text)
    which, _, value = target.partition("=")
    if which not in ("ttft", "tpot") or not value:
        raise _refuse(text, "write slo=MODEL:ttft=MS or slo=MODEL:tpot=MS")
    field = f"{which}Milliseconds"
    slo = model.setdefault("slo", {})
    if value == NONE:
        slo.pop(field, None)
        return
    if field not in slo and value[0] in "+-x":
        raise _refuse(text, f"model {model['name']} has no {which} target to change")
    milliseconds = _number(Decimal(slo.get(field, 0)), value, text)
    if milliseconds != int(milliseconds):
        raise _refuse(text, "targets are whole milliseconds")
    slo[field] = int(milliseconds)


def _serving(spec: dict[str, Any], rest: str, text: str) -> None:
    model, value = _named(spec["models"], "model", rest, text)
    if value.casefold() not in SERVING:
        raise _refuse(text, f"write one of {', '.join(SERVING.values())}")
    model["serving"] = SERVING[value.casefold()]


def _link(spec: dict[str, Any], rest: str, text: str) -> None:
    links = spec.get("network", {}).get("links", [])
    link, value = _named(links, "link", rest, text)
    if value == NONE:
        links.remove(link)
    else:
        _set(link, "gigabitsPerSecond", value, text)


def _named(
    things: list[dict[str, Any]], kind: str, rest: str, text: str
) -> tuple[dict[str, Any], str]:
    """Return a pool, model or link by name, or by an accelerator that only one pool has."""
    name, _, value = rest.partition(":")
    if not value:
        raise _refuse(text, f"write NAME:VALUE with the name of a {kind}")
    matches = [thing for thing in things if thing["name"] == name]
    if not matches:
        accelerator = name.casefold()
        matches = [t for t in things if str(t.get("accelerator", "")).casefold() == accelerator]
    if len(matches) != 1:
        names = ", ".join(sorted(str(thing["name"]) for thing in things)) or "none"
        raise _refuse(text, f"{name!r} is not the name of one {kind}; there are: {names}")
    return matches[0], value


def _number(old: Decimal, value: str, text: str) -> Decimal:
    sign, digits = (value[0], value[1:]) if value[0] in "+-x" else ("", value)
    try:
        number = Decimal(digits)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number < 0 or (number and abs(number.adjusted()) > LARGEST):
        raise _refuse(text, f"{value!r} is no number; write 64, +64, -64 or x2")
    new = {"": number, "+": old + number, "-": old - number, "x": old * number}[sign]
    if new < 0:
        raise _refuse(text, f"{old} {value} is below 0")
    return new


def _set(thing: dict[str, Any], field: str, value: str, text: str) -> None:
    """Set a decimal without exponent or trailing zeros, as the spec writes money."""
    decimal = f"{_number(Decimal(thing.get(field, '0')), value, text):f}"
    thing[field] = decimal.rstrip("0").rstrip(".") if "." in decimal else decimal

"""The CEL adapter beyond upstream's table: names, caching by what is read, and refusals in place of wrong
answers."""

from __future__ import annotations

import pytest

from koordra.api.devices import Attribute, Capacity
from koordra.cel.functions.values import Semver
from koordra.cel.selectors import DeviceFacts, compile_error, matches
from koordra.cel.syntax import parse as parse_expression
from koordra.cel.translation import names_read, translated
from koordra.errors import SelectorError
from koordra.quantity import parse


def device(**attributes: object) -> DeviceFacts:
    kinds = {bool: "bool", int: "int", str: "string", tuple: "strings"}
    table = {f"koordra.io/{name}": Attribute(kinds[type(value)], value) for name, value in attributes.items()}
    table["koordra.io/driverVersion"] = Attribute("version", "550.54.15")
    return DeviceFacts("koordra.io", True, table, {"koordra.io/memory": Capacity(parse("80Gi"), "80Gi")})


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ('device.attributes["koordra.io"].model == "H100"', True),
        ('device.attributes["koordra.io"]["model"].startsWith("H")', True),
        ('device.attributes["koordra.io"].model in ["A100", "H100"]', True),
        ('"nope" in device.attributes["koordra.io"]', False),
        ('"model" in device.attributes["nobody.io"]', False),
        ('"nobody.io" in device.attributes', False),
        ('has(device.attributes["koordra.io"].model) && !has(device.attributes["nobody.io"].model)', True),
        ('device.attributes["nobody.io"].?model.orValue("none") == "none"', True),
        ('device.attributes[?"nobody.io"].hasValue()', True),
        ('device.capacity["koordra.io"].memory.compareTo(quantity("80Gi")) == 0', True),
        ('sets.contains(["H100", "A100"], [device.attributes["koordra.io"].model])', True),
        ("sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [dyn(true)])", True),
        ("sets.equivalent([1, 2], [2, 1, 1]) && sets.contains([[1]], [[1]])", True),
        ("[3, 1, 2].max() == 3 && [3, 1, 2].min() == 1 && [3, 1, 2].sum() == 6", True),
        ("[1, 2].isSorted() && ![2, 1].isSorted()", True),
        ("'%.1e %.2f'.format([1500.0, 1234.5]) == '1.5×10⁰³ 1,234.50'", True),
        ("'%e %f %f'.format([0.0 / 0.0, 1.0 / 0.0, -1.0 / 0.0]) == 'NaN ∞ -∞'", True),
        (
            "'%s %s'.format([1e6, 0.5]) == '1e+06 0.5' && '%s'.format([timestamp('2026-01-02T03:04:05Z')]) != ''",
            True,
        ),
        ("url('http://h?') == url('http://h?') && url('http://h?') != url('http://h')", True),
        (
            "quantity('2').isInteger() && !quantity('1500m').isInteger() && quantity('3').asInteger() == 3",
            True,
        ),
        ('device.capacity["koordra.io"].memory == quantity("81920Mi")', True),
        ('device.capacity["koordra.io"].memory.sub(quantity("1Gi")).isLessThan(quantity("80Gi"))', True),
        (
            'quantity("2Ki").asInteger() == 2048 && sign(quantity("0.5")) == 1 && !quantity("0.5").isInteger()',
            True,
        ),
        ('device.attributes["koordra.io"].driverVersion.isGreaterThan(semver("550.54.14"))', True),
        ('device.attributes["koordra.io"].driverVersion.major() == 550', True),
        ('semver("1.0.0") == semver("1.0.0+build")', True),
        ('semver("1.0.0-rc.2").isLessThan(semver("1.0.0-rc.10"))', True),
        ('isQuantity("12Gi") && !isQuantity("12 Gi") && isSemver("v1.2", true) && !isSemver("v1.2")', True),
        ('"card-12".find("[0-9]+") == "12"', True),
        ('"a1b2".findAll("[0-9]") == ["1", "2"]', True),
        ('cel.bind(mine, device.attributes["koordra.io"], mine.model == "H100")', True),
        ("device.allowMultipleAllocations", True),
        ('device.driver == "koordra.io" // a comment\n', True),
        ('device.attributes["koordra.io"].note == \'it\\\'s "quoted" device.attributes[x]\'', True),
    ],
)
def test_answers(expression: str, answer: bool) -> None:
    found = device(model="H100", note='it\'s "quoted" device.attributes[x]')
    assert matches(expression, found) is answer


@pytest.mark.parametrize(
    "expression",
    [
        "device.serial",
        "device",
        "noSuchVariable",
        'device.capacity["koordra.io"].memory > 3',
        'device.capacity["koordra.io"].memory.koordra_exact == "1"',
        'quantity("1").isGreaterThan(semver("1.0.0"))',
        "1 + 1",
        '"abc".reverse() == "cba"',
        '[1, "a"].min() == 1',
        '{"a": 1, "b": true}.size() == 2',
        'quantity("1").sign() == 1',
        'type(quantity("1")) == kubernetes.Quantity',
        'net.IP{} == ip("10.0.0.1")',
        "[1].koordraKeys() == [0]",
        "math.greatest(1, 2) == 2",
        'base64.encode(b"a") == "YQ=="',
        '"text"',
        "",
        "true" + " " * 10240,
        "'a",
        "'''a''",
        "true true",
        "[1,,2] == [1, 2]",
        "f(1,)",
        "1 +",
        ")",
        "in",
        "[1].all(in, true)",
    ],
)
def test_what_does_not_compile(expression: str) -> None:
    assert compile_error(expression)
    with pytest.raises(SelectorError):
        matches(expression, device())


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["koordra.io"].nope == 1',
        'device.attributes["koordra.io"].model.isGreaterThan(quantity("1"))',
        'quantity("not a quantity") == quantity("1")',
        'semver("1.2") == semver("1.2.0")',
        '"x".find("(?=x)") == "x"',
        '"x".find("(") == "x"',
        "[].max() == 1",
        '[dyn(1), dyn("a")].min() == 1',
        "[9223372036854775807, 1].sum() > 0",
        'quantity("0.5").asInteger() == 0',
    ],
)
def test_what_fails_on_a_device(expression: str) -> None:
    assert compile_error(expression) is None
    with pytest.raises(SelectorError, match="runtime error"):
        matches(expression, device(model="H100"))


def test_an_attribute_of_an_unknown_type_fails_every_selector() -> None:
    """As in Kubernetes, where the device's values are converted before the expression is looked at."""
    facts = device()
    broken = facts._replace(attributes={**facts.attributes, "koordra.io/new": Attribute("", None)})
    with pytest.raises(SelectorError, match="attribute new: unsupported attribute value"):
        matches("true", broken)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('device.driver == "x"', set()),
        (
            'device.attributes["d"].model == "H100" && device.capacity["d"]["memory"] == quantity("1")',
            {"model", "memory"},
        ),
        ('device.attributes["d"].exists(key, key == "x")', None),
        ('"d" in device.attributes', None),
        ('cel.bind(a, device.attributes["d"], a.model == "x")', None),
    ],
)
def test_what_an_expression_reads(expression: str, names: set[str] | None) -> None:
    assert names_read(parse_expression(expression)) == names


@pytest.mark.parametrize(
    ("expression", "rewritten"),
    [
        ('device.attributes["a"].b', 'device.attributes[?"a"].orValue({}).b'),
        ('device.capacity[?"a"]', 'optional.of(device.capacity[?"a"].orValue({}))'),
        ('"a" in device.attributes', '"a" in device.attributes'),
        ("device.attributes.all(x, true)", "device.attributes.all(x,true)"),
        ("device.attributes.a", 'device.attributes[?"a"].orValue({})'),
        ('x.device.attributes["a"]', 'x.device.attributes["a"]'),
        ("'device.attributes[\"a\"]'", "'device.attributes[\"a\"]'"),
    ],
)
def test_unknown_domains_become_empty_maps(expression: str, rewritten: str) -> None:
    (written,) = translated(parse_expression(expression))
    assert written.text == rewritten


@pytest.mark.parametrize(
    ("expression", "rewritten"),
    [
        ("(((1 + 2))) * 3 - -x", "(1 + 2) * 3 - -x"),
        ("(a || b) && !(c ? d : e)", "(a||b)&&!(c?d:e)"),
        ("a == (b == c)", "a == (b == c)"),
        ("[1, ?x, {'a': b,}]", "[1,?x,{'a':b}]"),
        (
            "x.transformMapEntry(i, v, {v: i})",
            "x.transformList(i,v,{v:i}).koordraMerged()",
        ),
        (
            "x.sortBy(y, -y).reverse()",
            "x.sortBy(y,-y).koordraReversed()",
        ),
    ],
)
def test_what_is_written_for_the_library(expression: str, rewritten: str) -> None:
    (written,) = translated(parse_expression(expression))
    assert written.text == rewritten
    assert not written.free


@pytest.mark.parametrize(
    ("text", "loose", "normal"),
    [
        ("1.2.3", False, "1.2.3"),
        ("v1.2", True, "1.2.0"),
        ("01.02.03", True, "1.2.3"),
        ("1.2.3-rc.1+b", False, "1.2.3-rc.1"),
    ],
)
def test_semver_reads(text: str, loose: bool, normal: str) -> None:
    assert str(Semver.parse(text, normalize=loose)) == normal


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "", "1.2.3.4"])
def test_semver_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match="semantic version"):
        Semver.parse(text)


def test_semver_order() -> None:
    order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0",
        "1.0.1",
        "1.10.0",
    ]
    parsed = [Semver.parse(text) for text in order]
    assert sorted(parsed) == parsed
    assert len(set(parsed)) == len(order)

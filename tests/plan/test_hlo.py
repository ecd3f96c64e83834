"""The reader of compiled programs: texts written for one question each; `test_compile` reads real ones."""

import pytest

from marin_core.plan.groups import UnknownFormError
from marin_core.plan.hlo import Collective, read_collectives

MESH = {"rack": 2, "expert": 4}
GROUPS = "replica_groups=mesh['rack'=2,'expert'=4] {'expert'}"


def program(*entry: str, before: str = "") -> str:
    """A module whose entry consists of these instructions."""
    lines = "\n".join(f"  {line}" for line in entry)
    return f"HloModule jit_f, is_scheduled=true, num_partitions=8\n\n{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{lines}\n}}\n"


def computation(name: str, *instructions: str) -> str:
    lines = "\n".join(f"  {line}" for line in instructions)
    return f"%{name} (p: f32[8]) -> f32[8] {{\n{lines}\n}}\n\n"


def only(text: str) -> Collective:
    (found,) = read_collectives(text, MESH)
    return found


@pytest.mark.parametrize(
    ("line", "kind", "operand", "result"),
    [
        (f"%r = f32[8,2]{{1,0}} all-reduce(%p), channel_id=1, {GROUPS}, use_global_device_ids=true, to_apply=%add", "all-reduce", 64, 64),
        (f"%r = f32[8]{{0}} all-gather(%p), channel_id=1, {GROUPS}, dimensions={{0}}, use_global_device_ids=true", "all-gather", 8, 32),
        (f"%r = f32[2]{{0}} reduce-scatter(%p), {GROUPS}, dimensions={{0}}, to_apply=%add", "reduce-scatter", 32, 8),
        (f"%r = (bf16[1,4]{{1,0}}, /*index=1*/bf16[1,4]{{1,0}}) all-to-all(%p, %q), {GROUPS}", "all-to-all", 16, 16),
        (f"%r = bf16[16]{{0:T(256)}} all-to-all(%p), {GROUPS}, dimensions={{0}}", "all-to-all", 32, 32),
        (f"%r = bf16[16]{{0}} ragged-all-to-all(%p, %o, %a, %b, %c, %d), {GROUPS}", "ragged-all-to-all", 32, 32),
        ("%r = s4[16]{0} collective-permute(%p), channel_id=2, source_target_pairs={{0,1},{1,0}}", "collective-permute", 8, 8),
        (f"%r = f8e4m3fn[16]{{0}} collective-broadcast(%p), {GROUPS}", "collective-broadcast", 16, 16),
        (f"ROOT %r = pred[8]{{0}} all-reduce(%p), {GROUPS}, to_apply=%or", "all-reduce", 8, 8),
        (f"%r = f32[8]{{0}} all-reduce-start(%p), {GROUPS}, to_apply=%add", "all-reduce", 32, 32),
        (f"%r = (f32[8]{{0}}, f32[4]{{0}}) all-reduce-start(%p, %q), {GROUPS}, to_apply=%add", "all-reduce", 48, 48),
        (f"%r = (f32[2]{{0}}, f32[8]{{0}}) all-gather-start(%p), {GROUPS}, dimensions={{0}}", "all-gather", 8, 32),
        (f"%r = ((f32[2], f32[1]), (f32[8], f32[4])) all-gather-start(%p, %q), {GROUPS}", "all-gather", 12, 48),
        (f"%r = ((f32[8]{{0}}), f32[2]{{0}}, u32[]) reduce-scatter-start(%p), {GROUPS}, to_apply=%add", "reduce-scatter", 32, 8),
        (f"%r = ((bf16[16]), bf16[16], u32[], u32[]) all-to-all-start(%p), {GROUPS}", "all-to-all", 32, 32),
        (f"%r = ((bf16[16], bf16[16]), bf16[16], u32[]) ragged-all-to-all-start(%p, %o), {GROUPS}", "ragged-all-to-all", 32, 32),
        (
            "%r = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
            "collective-permute",
            32,
            32,
        ),
    ],
)
def test_every_kind_is_read_with_its_bytes(line: str, kind: str, operand: int, result: int) -> None:
    found = only(program(line))
    assert (found.kind, found.operand_bytes, found.result_bytes) == (kind, operand, result)
    assert found.crossing.axes == ("expert",)
    assert (found.executions, found.in_loop) == (1, False)


def test_what_ends_an_asynchronous_collective_is_not_counted_again() -> None:
    text = program(
        f"%s = (f32[2]{{0}}, f32[8]{{0}}) all-gather-start(%p), {GROUPS}, dimensions={{0}}",
        "%d = f32[8]{0} all-gather-done(%s)",
        "%t = ((f32[8]), f32[8], u32[]) async-start(%d), calls=%wrapped",
        "%u = ((f32[8]), f32[8], u32[]) async-update(%t), calls=%wrapped",
        "ROOT %v = f32[8] async-done(%u), calls=%wrapped",
        before=computation("wrapped", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}"),
    )
    assert [(each.kind, each.executions) for each in read_collectives(text, MESH)] == [("all-to-all", 1), ("all-gather", 1)]


def test_sums_of_16_bit_numbers_that_a_cpu_widens_count_16_bits() -> None:
    found = only(program(f"%r = f32[8]{{0}} all-reduce(%p), {GROUPS}, to_apply=%add.clone_promoted"))
    assert found.operand_bytes == 16


def test_no_groups_means_all_devices() -> None:
    assert only(program("%r = f32[8] all-reduce(%p), to_apply=%add")).crossing.axes == ("rack", "expert")
    assert only(program("%r = f32[8] all-reduce(%p), replica_groups={}, to_apply=%add")).crossing.devices == 8


def test_collectives_in_nested_loops_run_as_often_as_both_turn() -> None:
    inner = computation("inner", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}")
    fused = computation("fused", f"ROOT %a = f32[8] all-gather(%p), {GROUPS}")
    test = computation("test", f"%g = s32[] all-reduce(%p), {GROUPS}, to_apply=%add", "ROOT %c = pred[] compare(%g, %g), direction=LT")
    outer = computation(
        "outer",
        "%f = f32[8] fusion(%p), kind=kLoop, calls=%fused",
        'ROOT %w = f32[8] while(%f), condition=%test, body=%inner, backend_config={"known_trip_count":{"n":"3"}}',
    )
    text = program(
        f"%once = f32[8] all-reduce(%p), {GROUPS}, to_apply=%add",
        'ROOT %w = f32[8] while(%p), condition=%test, body=%outer, backend_config={"dynamic_variables":[],"known_trip_count":{"n":"5"}}',
        before=inner + fused + test + outer,
    )
    found = {(each.kind, each.name): (each.executions, each.in_loop) for each in read_collectives(text, MESH)}
    assert found == {
        ("all-to-all", "a"): (15, True),
        ("all-gather", "a"): (5, True),
        ("all-reduce", "g"): (5 * (3 + 1) + 5 + 1, True),  # a condition is asked once more than the body runs
        ("all-reduce", "once"): (1, False),
    }


def test_a_loop_of_unknown_length_gives_a_lower_bound() -> None:
    body = computation("body", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}")
    found = only(program("ROOT %w = f32[8] while(%p), condition=%body_c, body=%body", before=body))
    assert (found.executions, found.in_loop, found.known_count) == (1, True, False)


@pytest.mark.parametrize(
    "call",
    ["branch_computations={%other, %branch}", "true_computation=%branch, false_computation=%other"],
)
def test_a_branch_gives_an_upper_bound(call: str) -> None:
    branch = computation("branch", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}") + computation("other", "ROOT %n = f32[8] negate(%p)")
    found = only(program(f"ROOT %c = f32[8] conditional(%p, %p, %p), {call}", before=branch))
    assert (found.executions, found.conditional) == (1, True)


def test_a_computation_called_twice_runs_twice() -> None:
    shared = computation("shared", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}")
    text = program(
        "%x = f32[8] call(%p), to_apply=%shared", "ROOT %y = f32[8] custom-call(%x), called_computations={%shared}", before=shared
    )
    assert only(text).executions == 2


def test_names_may_go_without_percent_signs() -> None:
    text = "HloModule m\n\nbody {\n  p = f32[8] parameter(0)\n  ROOT a = f32[8] all-to-all(p), replica_groups=[2,4]<=[8]\n}\n\n"
    loop = 'while(p), condition=c, body=body, backend_config={"known_trip_count":{"n":"7"}}'
    text += f"ENTRY main {{\n  p = f32[8] parameter(0)\n  ROOT w = f32[8] {loop}\n}}\n"
    assert only(text).executions == 7


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%r = f32[8] all-shuffle(%p), replica_groups={{0,1}}", "all-shuffle is no collective"),
        ("%r = f32[8] collective-gossip-start(%p)", "collective-gossip-start"),
        ("%r = (f32[8], u32[], token[]) send(%p, %t), channel_id=3", "send is no collective"),
        ("%r = f32[8] custom-call(%p), replica_groups={{0,1}}", "custom-call is no collective"),
        ("%r = f32[8] all-reduce(%p), replica_groups=@mesh {'rack'}, to_apply=%add", "replica groups in an unknown form"),
        ("%r = f32[8] all-reduce(%p), replica_groups=<0,1>, to_apply=%add", "replica groups in an unknown form"),
        ("%r = f32[8] all-reduce(%p), channel_id=1, replica_groups={{0}}, to_apply=%add", "groups of replicas"),
        ("%r = f32[8] collective-permute(%p), source_target_pairs=ring", "without pairs"),
        (f"%r = posit16[8] all-to-all(%p), {GROUPS}", "element type 'posit16'"),
        (f"%r = f32[8] all-gather-start(%p), {GROUPS}", "all-gather-start of type"),
        ("something else", "an instruction in an unknown form"),
    ],
)
def test_what_the_reader_does_not_know_is_an_error_that_names_the_line(line: str, says: str) -> None:
    with pytest.raises(UnknownFormError, match="Line 5: ") as caught:
        read_collectives(program(line), MESH)
    assert says in caught.value.message
    assert line in caught.value.message


def test_a_collective_that_nothing_known_calls_is_an_error() -> None:
    orphan = computation("orphan", f"ROOT %a = f32[8] all-to-all(%p), {GROUPS}")
    with pytest.raises(UnknownFormError, match="computation orphan, which nothing that is known calls"):
        read_collectives(program("ROOT %n = f32[8] negate(%p)", before=orphan), MESH)


def test_a_program_for_another_number_of_devices_is_an_error() -> None:
    with pytest.raises(UnknownFormError, match="for 8 devices, read for 4"):
        read_collectives(program("ROOT %n = f32[8] negate(%p)"), {"rack": 2, "expert": 2})


def test_text_without_an_entry_is_an_error() -> None:
    with pytest.raises(UnknownFormError, match="no ENTRY"):
        read_collectives("HloModule empty\n", MESH)


def test_exchanges_with_the_host_are_no_traffic_between_devices() -> None:
    assert read_collectives(program("%r = (f32[8], u32[], token[]) send(%p, %t), channel_id=3, is_host_transfer=true"), MESH) == ()

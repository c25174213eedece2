"""The NEON forms of the byte operations: compiled for Arm, and run in an emulator where there is one."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir
from llvmlite.binding.object_file import ObjectFileRef

from hotset.host.emit import I64, LANES_I32, Emitter

TABLE = tuple(int(n) for n in np.random.default_rng(1).permutation(256)[:16])
FEATURES = {"neon-i8mm": "+neon,+dotprod,+i8mm", "neon-dotprod": "+neon,+dotprod"}
CODE, DATA, STACK = 0x10000, 0x20000, 0x40000
RETURN = 0x1F000


def compiled(level: str, *, wide: bool, lookup: bool = False):
    """Machine and module of f(total, unsigned, signed, out): addresses of sixteen words each."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("neon")
    module.triple = "aarch64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 4), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    e = Emitter(builder, level)
    total, unsigned, signed = (e.load(address, 0, LANES_I32) for address in function.args[:3])
    result = e.lookup(unsigned, TABLE) if lookup else e.dot4(total, unsigned, signed, wide=wide)
    builder.store(result, e.at(function.args[3], I64(0), LANES_I32), align=4)
    builder.ret_void()
    target = llvm.Target.from_triple(module.triple)
    machine = target.create_target_machine(cpu="generic", features=FEATURES[level], opt=2)
    return machine, llvm.parse_assembly(str(module))


@pytest.mark.parametrize(("level", "instruction"), [("neon-i8mm", "usdot"), ("neon-dotprod", "sdot")])
@pytest.mark.parametrize("wide", [False, True])
def test_products_use_the_instruction(level, instruction, wide):
    machine, module = compiled(level, wide=wide)
    assembly = machine.emit_assembly(module)
    assert assembly.count(f"\t{instruction}\t") == (8 if wide and level == "neon-dotprod" else 4)


@pytest.mark.parametrize("level", FEATURES)
def test_lookups_use_the_table_instruction(level):
    machine, module = compiled(level, wide=False, lookup=True)
    assert machine.emit_assembly(module).count("\ttbl\t") == 4


@pytest.mark.parametrize("wide", [False, True])
def test_signed_products_give_the_exact_sums(wide):
    unicorn = pytest.importorskip("unicorn", reason="UNICORN ABSENT: code for Arm was not run")
    from unicorn import arm64_const as arm

    machine, module = compiled("neon-dotprod", wide=wide)
    sections = ObjectFileRef.from_data(machine.emit_object(module)).sections()
    code = next(bytes(part.data()) for part in sections if part.is_text())
    rng = np.random.default_rng(int(wide))
    unsigned = rng.integers(0, 256 if wide else 128, (16, 4), np.uint8)
    signed = rng.integers(-128, 128, (16, 4), np.int8)
    unsigned[0], signed[0] = (255 if wide else 127), -128
    total = rng.integers(-1000, 1000, 16, np.int32)
    emulator = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    emulator.ctl_set_cpu_model(arm.UC_CPU_ARM64_MAX)
    emulator.mem_map(CODE, 0x40000)
    emulator.reg_write(arm.UC_ARM64_REG_CPACR_EL1, 3 << 20)  # lets vector instructions run
    emulator.mem_write(CODE, code)
    for i, data in enumerate((total, unsigned, signed)):
        emulator.mem_write(DATA + 64 * i, data.tobytes())
    for i in range(4):
        emulator.reg_write(getattr(arm, f"UC_ARM64_REG_X{i}"), DATA + 64 * i)
    emulator.reg_write(arm.UC_ARM64_REG_SP, STACK)
    emulator.reg_write(arm.UC_ARM64_REG_LR, RETURN)
    emulator.emu_start(CODE, RETURN)
    found = np.frombuffer(bytes(emulator.mem_read(DATA + 192, 64)), np.int32)
    assert np.array_equal(found, total + (unsigned.astype(np.int64) * signed).sum(1))

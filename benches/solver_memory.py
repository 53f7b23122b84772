"""Memory of a robot's solver on a GPU: three micro-benchmarks of layouts, each against what the engine does today.

    python benches/solver_memory.py [--lanes 8192,65536] [--repeat 20]    # JSON lines; needs a GPU
    python benches/solver_memory.py compile                               # needs NVRTC, but no GPU

Question: does the engine wait for the number of cache lines that a load touches? Local memory interleaves the lanes of
a warp by words of 4 bytes: where all lanes read the same index, a load touches one line of 128 bytes, and where each
reads another index, 32.

- `gather`: loads of one word from an array of each lane, at the same index in all lanes or at another in each; from
  local memory and from memory in which a lane's array is contiguous.
- `dual`: sweeps of projected Gauss-Seidel over dense rows in shuffled order, which depends on a lane's number of rows
  (as `operant/physics/pgs.py`). The matrix is in local memory (today), contiguous for each lane in global memory, or
  contiguous in shared memory. `residual` keeps A f + b and updates it by a column with every force; the engine could
  leave out those that did not change, about half.
- `hessian`: H += J' D J over contacts, as `operant/physics/newton.py`: by the degrees of freedom of the contact's pair
  of geoms, which differ between lanes (today), or with dense rows and H in registers.

The layouts of a benchmark compute the same numbers: `sum` is printed, and must agree up to rounding. `us` is the median
time of a launch; `cycles` that of a multiprocessor for each unit of a lane's work (a load, an update of a row, a row).
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from operant.physics.pgs import PACKED, shuffled_orders

BLOCK = 64  # lanes
ROOM = 32  # rows of the dual problem
SWEEPS = 50
CONTACTS, CHAIN, DOFS, PAIRS = 8, 6, 9, 16

GATHER = r"""
extern "C" __global__ void gather(float *out, float *memory, int contiguous, int spread, int times) {
    float own[1024];
    int lane = blockIdx.x * blockDim.x + threadIdx.x;
    float *array = contiguous ? memory + lane * 1024 : own;
    for (int i = 0; i < 1024; i++) array[i] = (float)(i & 7);
    float total = 0.0f;
    unsigned at = spread * lane;
    for (int t = 0; t < times; t++) {
        #pragma unroll 8
        for (int i = 0; i < 64; i++) total += array[(at + 17u * i) & 1023u];
        at += 1u + (total < 0.0f);
    }
    out[lane] = total;
}
"""

# LAYOUT: 0 local, 1 global, 2 shared. RESIDUAL: update of A f + b by columns.
DUAL = r"""
#define ROOM %(room)d
__device__ __forceinline__ float dot(const float4 a, const float4 b) {
    return (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
}
extern "C" __global__ void dual(float *out, float *memory, const int *rows, const int *sweeps,
                                const long long *orders, const int *starts, int times) {
    int lane = blockIdx.x * blockDim.x + threadIdx.x, n = rows[lane], stride = (n + 7) & ~7;
    __align__(16) float f[ROOM], slopes[ROOM];  // slopes: b, or A f + b
#if LAYOUT == 0
    __align__(16) float A[ROOM * ROOM];
#elif LAYOUT == 1
    float *A = memory + (long long)lane * ROOM * ROOM;
#else
    extern __shared__ __align__(16) float shared[];
    float *A = shared + threadIdx.x * (ROOM * ROOM + 4);
#endif
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < stride; j++) {
            unsigned mixed = (i * j + i + j) * 2654435761u;
            float off = (float)(mixed >> 24) * (1.0f / 1024.0f) - 0.125f;
            A[i * stride + j] = j >= n ? 0.0f : (i == j ? 0.5f * n : off);
        }
    }
    float total = 0.0f;
    for (int t = 0; t < times; t++) {
        for (int i = 0; i < stride; i++) {
            f[i] = 0.0f;
            slopes[i] = i < n ? (float)((i * 7 + t) %% 5) - 2.5f : 0.0f;
        }
        int entry = starts[n];
        for (int sweep = 0; sweep < sweeps[lane]; sweep++) {
            long long packed = 0;
            for (int k = 0; k < n; k++) {
                packed = k %% %(packed)d == 0 ? orders[entry + k / %(packed)d] : packed >> 8;
                int row = (int)(packed & 255);
                float old = f[row], diagonal = A[row * stride + row];
                float slope = slopes[row];
#if !RESIDUAL
                for (int j = 0; j < stride; j += 8) {
                    const float4 *a = (const float4 *)(A + row * stride + j), *g = (const float4 *)(f + j);
                    slope += dot(a[0], g[0]) + dot(a[1], g[1]);
                }
#endif
                float force = fmaxf(old - slope / diagonal, 0.0f);
                f[row] = force;
#if RESIDUAL
                float delta = force - old;
                for (int j = 0; j < stride; j += 4) {
                    float4 a = *(const float4 *)(A + row * stride + j), *to = (float4 *)(slopes + j), x = *to;
                    x.x += a.x * delta; x.y += a.y * delta; x.z += a.z * delta; x.w += a.w * delta;
                    *to = x;
                }
#endif
            }
            entry += (n + %(packed)d - 1) / %(packed)d;
        }
        for (int i = 0; i < n; i++) total += f[i];
    }
    out[lane] = total;
}
"""

HESSIAN = r"""
#define NV %(dofs)d
#define CHAIN %(chain)d
extern "C" __global__ void hessian(float *out, const int *counts, const int *pairs, const int *dofs, int times) {
    int lane = blockIdx.x * blockDim.x + threadIdx.x, n = counts[lane];
    float H[NV * (NV + 1) / 2], total = 0.0f;
#if DENSE
    __align__(16) float J[%(contacts)d * 12];
#else
    float J[%(contacts)d * CHAIN];
#endif
    for (int k = 0; k < n; k++) {
#if DENSE
        int pair = pairs[lane * %(contacts)d + k];
        for (int i = 0; i < 12; i++) J[k * 12 + i] = 0.0f;
        for (int a = 0; a < CHAIN; a++) J[k * 12 + dofs[pair * CHAIN + a]] = (float)(a + k) * 0.25f - 1.0f;
#else
        for (int a = 0; a < CHAIN; a++) J[k * CHAIN + a] = (float)(a + k) * 0.25f - 1.0f;
#endif
    }
    for (int t = 0; t < times; t++) {
#if DENSE
        float h[NV * (NV + 1) / 2];
        #pragma unroll
        for (int i = 0; i < NV * (NV + 1) / 2; i++) h[i] = 0.0f;
        for (int k = 0; k < n; k++) {
            const float4 *row = (const float4 *)(J + k * 12);
            float4 x = row[0], y = row[1], z = row[2];
            float j[12] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w, z.x, z.y, z.z, z.w};
            float d = 1.0f + 0.5f * (float)((k + t) & 1);
            #pragma unroll
            for (int a = 0; a < NV; a++) {
                float weighted = d * j[a];
                #pragma unroll
                for (int c = 0; c <= a; c++) h[a * (a + 1) / 2 + c] += weighted * j[c];
            }
        }
        #pragma unroll
        for (int i = 0; i < NV * (NV + 1) / 2; i++) H[i] = h[i];
#else
        for (int i = 0; i < NV * (NV + 1) / 2; i++) H[i] = 0.0f;
        for (int k = 0; k < n; k++) {
            int pair = pairs[lane * %(contacts)d + k];
            float d = 1.0f + 0.5f * (float)((k + t) & 1);
            for (int a = 0; a < CHAIN; a++) {
                float weighted = d * J[k * CHAIN + a];
                int row = dofs[pair * CHAIN + a];
                for (int c = 0; c <= a; c++)
                    H[row * (row + 1) / 2 + dofs[pair * CHAIN + c]] += weighted * J[k * CHAIN + c];
            }
        }
#endif
        for (int i = 0; i < NV * (NV + 1) / 2; i++) total += H[i];
    }
    out[lane] = total;
}
"""
NAMES = {"room": ROOM, "packed": PACKED, "contacts": CONTACTS, "chain": CHAIN, "dofs": DOFS}


def sources() -> dict[str, tuple[str, str]]:
    """Kernel name and CUDA C of each layout."""
    made = {"gather": ("gather", GATHER)}
    for place, layout in (("local", 0), ("global", 1), ("shared", 2)):
        for residual in (0, 1):
            name = f"dual {place}" + (" residual" if residual else "")
            made[name] = ("dual", f"#define LAYOUT {layout}\n#define RESIDUAL {residual}\n" + DUAL % NAMES)
    for dense in (0, 1):
        made["hessian dense" if dense else "hessian"] = ("hessian", f"#define DENSE {dense}\n" + HESSIAN % NAMES)
    return made


def median_us(launch: Callable[[], Any], repeat: int) -> float:
    """Median time of a launch, us."""
    launch()
    times = []
    for _ in range(repeat):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def measure(lanes: int, repeat: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each layout at a number of lanes."""
    device, made = torch.device("cuda"), sources()
    card = torch.cuda.get_device_properties(device)
    clock_mhz, out = card.clock_rate / 1e3, torch.zeros(lanes, device=device)  # the highest clock
    grid, block = (lanes // BLOCK, 1, 1), (BLOCK, 1, 1)

    def row(name: str, us: float, units: float) -> dict[str, Any]:
        """`units`: of work, in all lanes."""
        busy = min(card.multi_processor_count, lanes // BLOCK)
        cycles = us * clock_mhz * busy / units
        return {"name": name, "lanes": lanes, "us": round(us, 1), "cycles": round(cycles, 2), "sum": float(out.sum())}

    kernel = loaded(*made["gather"])
    memory = torch.zeros(lanes * 1024, device=device)
    for contiguous in (0, 1):
        for spread in (0, 37):
            words = [out, memory, contiguous, spread, 50]
            us = median_us(functools.partial(kernel, grid, block, words), repeat)
            place = ("contiguous" if contiguous else "local") + (", scattered" if spread else ", same index")
            yield row(f"gather {place}", us, lanes * 50 * 64)

    # About the rows and sweeps of a humanoid on the ground: 11 rows on average, 25 in the lane of a warp with the most.
    random = np.random.default_rng(1)
    packed, first = shuffled_orders(ROOM, SWEEPS)
    orders, starts = torch.from_numpy(packed).to(device), torch.from_numpy(first).to(device)
    spread_rows = np.clip(np.round(random.gamma(2.2, 10.9 / 2.2, lanes)), 1, 28).astype(np.int32)
    spread_sweeps = np.clip(5 + random.exponential(15, lanes), 1, SWEEPS).astype(np.int32)
    cases = {"": (spread_rows, spread_sweeps), ", 24 rows each": (np.full(lanes, 24, np.int32),) * 2}
    memory = torch.zeros(lanes * ROOM * ROOM, device=device)
    for case, (rows, sweeps) in cases.items():
        n, s = torch.from_numpy(rows).to(device), torch.from_numpy(sweeps).to(device)
        for name, (symbol, source) in made.items():
            if symbol != "dual":
                continue
            kernel, size, threads = loaded(symbol, source), 0, BLOCK
            if "shared" in name:  # as many lanes as fit
                threads = 32
                size = threads * (ROOM * ROOM + 4) * 4
                kernel.set_shared_memory_config(size)
            shape, words = ((lanes // threads, 1, 1), (threads, 1, 1)), [out, memory, n, s, orders, starts, 4]
            us = median_us(functools.partial(kernel, *shape, words, size), repeat)
            yield row(name + case, us, 4.0 * float((rows.astype(float) * sweeps).sum()))

    counts = torch.from_numpy(random.integers(0, CONTACTS + 1, lanes).astype(np.int32)).to(device)
    pairs = torch.from_numpy(random.integers(0, PAIRS, (lanes, CONTACTS)).astype(np.int32)).to(device)
    chains = np.array([np.sort(random.permutation(DOFS)[:CHAIN]) for _ in range(PAIRS)], np.int32)
    dofs = torch.from_numpy(chains).to(device)
    for name in ("hessian", "hessian dense"):
        kernel = loaded(*made[name])
        us = median_us(functools.partial(kernel, grid, block, [out, counts, pairs, dofs, 50]), repeat)
        yield row(name, us, 50.0 * float(counts.sum()))


def compiled(source: str) -> bytes:
    """Machine code for sm_90. Raises RuntimeError with the compiler's messages."""
    from cuda.bindings import nvrtc

    _, made = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(made, 1, [b"--gpu-architecture=sm_90"])
    log = bytearray(nvrtc.nvrtcGetProgramLogSize(made)[1])
    nvrtc.nvrtcGetProgramLog(made, log)
    if said := log.decode().strip("\0\n "):
        raise RuntimeError(said)
    code = bytearray(nvrtc.nvrtcGetCUBINSize(made)[1])
    nvrtc.nvrtcGetCUBIN(made, code)
    return bytes(code)


def loaded(symbol: str, source: str) -> Any:
    """Kernel that is called with the grid, the block, a list of arguments and the bytes of shared memory."""
    return torch.cuda._utils._cuda_load_module(compiled(source), [symbol])[symbol]  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("compile",))
    parser.add_argument("--lanes", default="8192,65536")
    parser.add_argument("--repeat", type=int, default=20)
    words = parser.parse_args()
    if words.part == "compile":
        for name, (_, source) in sources().items():
            print(json.dumps({"name": name, "code_bytes": len(compiled(source))}))
        return
    for lanes in map(int, words.lanes.split(",")):
        for row in measure(lanes, words.repeat):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

// What the words of CUDA that commbench's kernels use mean on a host; to be included before a kernel's source.
//
// The threads of a block are fibres that take turns: each runs until it waits for others of its warp or block. Blocks
// run one after the other, from the last to the first, and threads in another order in every turn, so that nothing may
// rest on an order that CUDA does not promise. What a GPU would wait for without end ends the process. Denormals count
// as zero, as cupy has it, but where a kernel asks for an addition that keeps them (on x86; elsewhere they are kept).

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <ucontext.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

struct Place {
    unsigned x;
};
static Place threadIdx, blockIdx, gridDim;

namespace host {

inline void flush_denormals(bool flushes) {
#ifdef __SSE2__
    constexpr unsigned BOTH = 0x8040;  // of operands and of results
    _mm_setcsr(flushes ? _mm_getcsr() | BOTH : _mm_getcsr() & ~BOTH);
#else
    (void)flushes;
#endif
}

// What the operation gives where denormals are none; volatile, for the compiler knows nothing of the mode.
template <typename Operation>
inline float keeping_denormals(float a, float b, Operation operation) {
    volatile float first = a, second = b, result;
    flush_denormals(false);
    result = operation(first, second);
    flush_denormals(true);
    return result;
}

// Threads that wait for each other.
struct Meeting {
    unsigned arrived = 0, number = 0;
    unsigned votes[2] = {0, 0};
    unsigned values[2][32] = {};
};

constexpr unsigned LANES = 32;
constexpr size_t STACK = 1 << 16;

static ucontext_t scheduler;
static std::vector<ucontext_t> fibres;
static std::vector<char> stacks;
static std::vector<bool> over;
static std::vector<Meeting> warps;
static Meeting block;
static bool moved;

using Word = long long;
using Kernel = void (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
static Kernel kernel;
static const Word *given;

inline void let_others_run() {
    const unsigned me = threadIdx.x;
    swapcontext(&fibres[me], &scheduler);
    threadIdx.x = me;
}

// Waits until so many threads are here; returns which of a meeting's two votes is theirs.
inline unsigned meet(Meeting &meeting, unsigned threads, bool vote = false) {
    const unsigned number = meeting.number;
    unsigned &votes = meeting.votes[number % 2];
    if (meeting.arrived == 0) votes = 0;
    if (vote) votes |= 1u << threadIdx.x % LANES;
    if (++meeting.arrived == threads) {
        meeting.arrived = 0;
        ++meeting.number;
        moved = true;
    }
    while (meeting.number == number) let_others_run();
    return number % 2;
}

inline void run_thread() {
    moved = true;
    const Word *a = given;
    // What a kernel does not take is left where nobody looks for it: so the ABIs of x86-64 and AArch64 have it.
    kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    over[threadIdx.x] = true;
    moved = true;
}

inline void run_block(unsigned threads) {
    block = Meeting();
    warps.assign(threads / LANES, Meeting());
    over.assign(threads, false);
    for (unsigned thread = 0; thread < threads; ++thread) {
        getcontext(&fibres[thread]);
        fibres[thread].uc_stack.ss_sp = &stacks[thread * STACK];
        fibres[thread].uc_stack.ss_size = STACK;
        fibres[thread].uc_link = &scheduler;
        makecontext(&fibres[thread], run_thread, 0);
    }
    for (unsigned turn = 0; std::count(over.begin(), over.end(), false) != 0; ++turn) {
        moved = false;
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned thread = turn % 2 == 0 ? threads - 1 - i : (i + turn) % threads;
            threadIdx.x = thread;
            if (!over[thread]) swapcontext(&scheduler, &fibres[thread]);
        }
        if (!moved) {
            std::fputs("threads of a block wait for each other without end\n", stderr);
            std::abort();
        }
    }
}

}  // namespace host

inline void __syncthreads() { host::meet(host::block, host::over.size()); }

inline unsigned __ballot_sync(unsigned, bool vote) {
    host::Meeting &warp = host::warps[threadIdx.x / host::LANES];
    return warp.votes[host::meet(warp, host::LANES, vote)];
}

inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned mask) {
    host::Meeting &warp = host::warps[threadIdx.x / host::LANES];
    const unsigned lane = threadIdx.x % host::LANES;
    warp.values[warp.number % 2][lane] = value;
    return warp.values[host::meet(warp, host::LANES)][lane ^ mask];
}

inline void __threadfence() {}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned atomicAdd(unsigned *where, unsigned value) {
    const unsigned before = *where;
    *where += value;
    return before;
}

inline float plus(float a, float b) {
    return host::keeping_denormals(a, b, [](float one, float other) { return one + other; });
}

inline float minus(float a, float b) {
    return host::keeping_denormals(a, b, [](float one, float other) { return one - other; });
}

inline float times(float a, float b) {
    return host::keeping_denormals(a, b, [](float one, float other) { return one * other; });
}

inline float over(float a, float b) {
    return host::keeping_denormals(a, b, [](float one, float other) { return one / other; });
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

extern "C" void launch(host::Kernel kernel, unsigned blocks, unsigned threads, const host::Word *arguments) {
    host::kernel = kernel;
    host::given = arguments;
    host::fibres.resize(threads);
    host::stacks.resize(threads * host::STACK);
    gridDim.x = blocks;
    host::flush_denormals(true);
    for (unsigned number = 0; number < blocks; ++number) {
        blockIdx.x = blocks - 1 - number;
        host::run_block(threads);
    }
    host::flush_denormals(false);
}

// Top-k selection with error feedback: exactly k elements, in six launches whose sizes do not depend on the data.
//
//   survey  counts the magnitudes of gradient + residual by their first digit: finds the bin of the k-th largest
//   divide  writes the sum to the residual, and marks the elements in that bin or above it
//   refine  counts the next digit of the marked elements in the bin; twice, until one magnitude is left
//   tally   counts in each chunk the elements above and equal to this magnitude: assigns slots to chunks
//   emit    sends these elements, and takes them out of the residual
//
// A magnitude is the bits of a float without its sign. Magnitudes are ordered as absolute values are, denormals
// included; infinity and NaN are above everything finite. Only survey and divide read all elements. A warp reads one
// chunk at a time and writes its marks, in order, to the front of this chunk of the gradient. They always fit there,
// because the warp has read the elements that they replace. The last block to finish a kernel combines all results.

constexpr unsigned WARPS = THREADS / WARP;

constexpr unsigned POSITION_BITS = 10;
constexpr unsigned CHUNK = 1u << POSITION_BITS;
constexpr unsigned ROWS = 8;  // loads of a lane that are in flight at once

// A magnitude has 31 bits: a first digit, and a rest of two digits.
constexpr unsigned DIGIT_BITS = 10;
constexpr unsigned REST_BITS = 2 * DIGIT_BITS;
constexpr unsigned FIRST_BINS = 1u << (31 - REST_BITS);
constexpr unsigned BINS = 1u << DIGIT_BITS;
constexpr unsigned REST = (1u << REST_BITS) - 1;

// A mark is a position in the chunk, and before it the magnitude's rest, or this bit where it is above the bin.
constexpr unsigned ABOVE = 1u << 31;

constexpr unsigned INFINITE = 0x7f800000u, NOT_A_HALF = 0x7e00u;
// 2^-14, the least normal float16, and 65520, which would round to infinity in float16.
constexpr unsigned LEAST_NORMAL_HALF = 0x38800000u, TOO_LARGE_HALF = 0x477ff000u;
// The bits of 1/2, whose last place is worth as much as that of float16's denormals.
constexpr unsigned ONE_HALF = 0x3f000000u;
// Difference of the exponents of float32 and float16, at the place of the exponent in a float32.
constexpr unsigned REBIAS = 112u << 23;
constexpr unsigned LARGEST_HALF = 0x7bffu, HALF_INFINITY = 0x7c00u, HALF_SIGN = 0x8000u;

struct State {
    unsigned ticket;  // blocks that have finished the kernel under way
    unsigned finite;  // whether all elements are finite
    unsigned low;     // the k-th largest magnitude is one of low..high; low > high if fewer than k are not zero
    unsigned high;
    unsigned larger;  // elements above high
    unsigned equal;   // elements in low..high
};

// ---------------------------------------------------------------------------------------------- threads and chunks

// Neighbouring chunks belong to different blocks, so that even few chunks keep all multiprocessors busy.
__device__ unsigned first_chunk() { return threadIdx.x / WARP * gridDim.x + blockIdx.x; }

__device__ unsigned next_chunk(unsigned chunk) { return chunk + WARPS * gridDim.x; }

__device__ unsigned chunks_of(unsigned n) { return (n + CHUNK - 1) / CHUNK; }

// ROWS rows of gradient + residual from one element on; 0 beyond the end.
__device__ void load(float (&sums)[ROWS], const float *gradient, const float *residual, unsigned start, unsigned n) {
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned i = start + row * WARP + lane();
        sums[row] = i < n ? gradient[i] : 0.0f;
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned i = start + row * WARP + lane();
        if (i < n) sums[row] = plus(sums[row], residual[i]);
    }
}

// Whether all other blocks have finished this kernel: true in one block.
__device__ bool is_last(State *state) {
    __shared__ unsigned ticket;
    __syncthreads();
    if (threadIdx.x == 0) {  // its fences serve the whole block: barriers before and after
        __threadfence();
        ticket = atomicAdd(&state->ticket, 1u);
        __threadfence();
    }
    __syncthreads();
    if (ticket != gridDim.x - 1) return false;
    if (threadIdx.x == 0) state->ticket = 0;
    return true;
}

// The sum of the values of all threads of the block before this one.
__device__ unsigned long long sum_before(unsigned long long value) {
    __shared__ unsigned long long sums[THREADS];
    sums[threadIdx.x] = value;
    __syncthreads();
    for (unsigned step = 1; step < THREADS; step *= 2) {
        const unsigned long long left = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += left;
        __syncthreads();
    }
    return sums[threadIdx.x] - value;
}

// ------------------------------------------------------------------------------------------------------- counting

__device__ void clear(unsigned *bins, unsigned count) {
    for (unsigned bin = threadIdx.x; bin < count; bin += THREADS) bins[bin] = 0;
    __syncthreads();
}

// Counts equal elements of a row of one thread at once, so that they do not all wait for one counter.
struct Counter {
    unsigned *bins;
    unsigned bin, run;

    __device__ explicit Counter(unsigned *where) : bins(where), bin(0), run(0) {}

    __device__ void add(unsigned which) {
        if (which != bin) {
            flush();
            bin = which;
        }
        ++run;
    }

    __device__ void flush() {
        if (run != 0) atomicAdd(bins + bin, run);
        run = 0;
    }
};

__device__ void add_up(const unsigned *bins, unsigned *histogram, unsigned count) {
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < count; bin += THREADS) {
        if (bins[bin] != 0) atomicAdd(histogram + bin, bins[bin]);
    }
}

// By one block: narrow low..high to the bin with the k-th largest; clear the histogram.
// `larger` elements are above all bins; `first` is the least magnitude of bin 0, and a bin has 2^shift of them.
__device__ void narrow(State *state, volatile unsigned *histogram, unsigned count, unsigned first, unsigned shift,
                       unsigned larger, unsigned k) {
    const unsigned each = count / THREADS, end = count - threadIdx.x * each;  // the first thread has the highest bins
    unsigned own = 0;
    for (unsigned bin = end - each; bin < end; ++bin) own += histogram[bin];
    unsigned before = larger + static_cast<unsigned>(sum_before(own));
    if (before < k && k <= before + own) {
        unsigned bin = end - 1;
        for (; before + histogram[bin] < k; --bin) before += histogram[bin];
        state->low = first + (bin << shift);
        state->high = state->low + (1u << shift) - 1;
        state->larger = before;
        state->equal = histogram[bin];
    } else if (threadIdx.x == THREADS - 1 && before + own < k) {
        state->low = 1;
        state->high = 0;
        state->larger = before + own;
        state->equal = 0;
    }
    for (unsigned bin = end - each; bin < end; ++bin) histogram[bin] = 0;
}

// ----------------------------------------------------------------------------------------------- what is to be sent

extern "C" __global__ void __launch_bounds__(THREADS)
survey(const float *gradient, const float *residual, unsigned n, unsigned k, State *state, unsigned *histogram) {
    __shared__ unsigned bins[FIRST_BINS];
    clear(bins, FIRST_BINS);
    Counter counter(bins);
    for (unsigned chunk = first_chunk(); chunk < chunks_of(n); chunk = next_chunk(chunk)) {
        for (unsigned at = 0; at < CHUNK; at += ROWS * WARP) {
            float sums[ROWS];
            load(sums, gradient, residual, chunk * CHUNK + at, n);
#pragma unroll
            for (unsigned row = 0; row < ROWS; ++row) {
                const unsigned key = magnitude(sums[row]);
                if (key != 0) counter.add(key >> REST_BITS);
            }
        }
    }
    counter.flush();
    add_up(bins, histogram, FIRST_BINS);
    if (!is_last(state)) return;
    if (threadIdx.x == 0) state->finite = 1;
    __syncthreads();
    const volatile unsigned *found = histogram;
    for (unsigned bin = (INFINITE >> REST_BITS) + threadIdx.x; bin < FIRST_BINS; bin += THREADS) {
        if (found[bin] != 0) state->finite = 0;
    }
    narrow(state, histogram, FIRST_BINS, 0, REST_BITS, 0, k);
}

// From the last chunk to the first: the cache still holds the chunks that `survey` read last.
extern "C" __global__ void __launch_bounds__(THREADS)
divide(float *gradient, float *residual, unsigned n, const State *state, unsigned *counts) {
    if (!state->finite) return;
    const unsigned low = state->low != 0 ? state->low : 1, high = state->high, chunks = chunks_of(n);
    const unsigned before_me = (1u << lane()) - 1;
    for (unsigned number = first_chunk(); number < chunks; number = next_chunk(number)) {
        const unsigned chunk = chunks - 1 - number, start = chunk * CHUNK;
        unsigned count = 0;
        for (unsigned at = 0; at < CHUNK; at += ROWS * WARP) {
            float sums[ROWS];
            load(sums, gradient, residual, start + at, n);
#pragma unroll
            for (unsigned row = 0; row < ROWS; ++row) {
                const unsigned position = at + row * WARP + lane(), key = magnitude(sums[row]);
                if (start + position < n) residual[start + position] = sums[row];
                // All lanes have read their elements of this row once they have voted, so marks may replace them.
                const unsigned marked = __ballot_sync(ALL_LANES, key >= low);
                if (key >= low) {
                    const unsigned mark = (key > high ? ABOVE : (key & REST) << POSITION_BITS) | position;
                    gradient[start + count + __popc(marked & before_me)] = __uint_as_float(mark);
                }
                count += __popc(marked);
            }
        }
        if (lane() == 0) counts[chunk] = count;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
refine(const float *marks, unsigned n, unsigned k, unsigned shift, State *state, const unsigned *counts,
       unsigned *histogram) {
    if (!state->finite) return;
    __shared__ unsigned bins[BINS];
    clear(bins, BINS);
    Counter counter(bins);
    const unsigned low = state->low & REST, high = state->high & REST;
    for (unsigned chunk = first_chunk(); chunk < chunks_of(n); chunk = next_chunk(chunk)) {
        const unsigned count = counts[chunk];
        for (unsigned i = lane(); i < count; i += WARP) {
            const unsigned mark = __float_as_uint(marks[chunk * CHUNK + i]), digits = mark >> POSITION_BITS;
            if (mark < ABOVE && low <= digits && digits <= high) counter.add(digits >> shift & (BINS - 1));
        }
    }
    counter.flush();
    add_up(bins, histogram, BINS);
    if (is_last(state)) narrow(state, histogram, BINS, state->low, shift, state->larger, k);
}

// A mark compared with the rest of the k-th largest: above 0 if larger, 0 if equal.
__device__ int compare(unsigned mark, unsigned level) {
    if (mark >= ABOVE) return 1;
    const unsigned digits = mark >> POSITION_BITS;
    return digits > level ? 1 : digits == level ? 0 : -1;
}

// Number of chunks that one thread sums at the end of tally.
__device__ unsigned chunks_of_a_thread(unsigned chunks) { return (chunks + THREADS - 1) / THREADS; }

// Index of the total of a chunk: the first chunks of all threads are adjacent, then their second ones.
__device__ unsigned place_of(unsigned chunk, unsigned each) { return chunk % each * THREADS + chunk / each; }

// `before` becomes the totals of all chunks before each: larger elements, and in the high half equal ones.
extern "C" __global__ void __launch_bounds__(THREADS)
tally(const float *marks, unsigned n, State *state, const unsigned *counts, unsigned long long *before) {
    if (!state->finite) return;
    const unsigned level = state->low & REST, chunks = chunks_of(n), each = chunks_of_a_thread(chunks);
    for (unsigned chunk = first_chunk(); chunk < chunks; chunk = next_chunk(chunk)) {
        const unsigned count = counts[chunk];
        unsigned larger = 0, equal = 0;
        for (unsigned i = 0; i < count; i += WARP) {
            const int order = i + lane() < count
                ? compare(__float_as_uint(marks[chunk * CHUNK + i + lane()]), level) : -1;
            larger += __popc(__ballot_sync(ALL_LANES, order > 0));
            equal += __popc(__ballot_sync(ALL_LANES, order == 0));
        }
        if (lane() == 0) before[place_of(chunk, each)] = static_cast<unsigned long long>(equal) << 32 | larger;
    }
    if (!is_last(state)) return;
    volatile unsigned long long *all = before;
    const unsigned first = threadIdx.x * each, left = first < chunks ? chunks - first : 0;
    const unsigned end = (left < each ? left : each) * THREADS;
    unsigned long long own = 0;
    for (unsigned place = threadIdx.x; place < end; place += THREADS) own += all[place];
    unsigned long long sum = sum_before(own);
    for (unsigned place = threadIdx.x; place < end; place += THREADS) {
        const unsigned long long here = all[place];
        all[place] = sum;
        sum += here;
    }
}

// ------------------------------------------------------------------------------------------------------------ slots

// The bits of the float16 that is sent: the nearest, ties to even; the largest if the nearest is infinity.
__device__ unsigned half_of(float value) {
    const unsigned key = magnitude(value), sign = __float_as_uint(value) >> 16 & HALF_SIGN;
    if (key > INFINITE) return NOT_A_HALF;
    if (key < LEAST_NORMAL_HALF) return (__float_as_uint(__uint_as_float(key) + 0.5f) - ONE_HALF) | sign;
    if (key < TOO_LARGE_HALF) return (key - REBIAS + 0xfffu + (key >> 13 & 1u)) >> 13 | sign;
    return LARGEST_HALF | sign;
}

// The float32 equal to a float16, given by its bits.
__device__ float single_of(unsigned half) {
    const unsigned key = half & (HALF_SIGN - 1);
    float value;
    if (key >= HALF_INFINITY) {
        value = __uint_as_float(key << 13 | INFINITE);
    } else if (key >= 1u << 10) {
        value = __uint_as_float((key << 13) + REBIAS);
    } else {
        value = static_cast<float>(key) * 5.9604644775390625e-8f;  // 2^-24
    }
    return half & HALF_SIGN ? -value : value;
}

// Fill a slot of a payload, k indices and then k values; returns the value that arrives.
__device__ float put(unsigned *payload, unsigned k, unsigned slot, unsigned index, float value, unsigned halves) {
    payload[slot] = index;
    if (!halves) {
        reinterpret_cast<float *>(payload + k)[slot] = value;
        return value;
    }
    const unsigned half = half_of(value);
    reinterpret_cast<unsigned short *>(payload + k)[slot] = static_cast<unsigned short>(half);
    return single_of(half);
}

// First the elements above the k-th largest, then the first ones equal to it until the slots are full. Unused slots add
// 0 to the first elements.
extern "C" __global__ void __launch_bounds__(THREADS)
emit(const float *marks, float *residual, unsigned n, unsigned k, unsigned halves,
     const State *state, const unsigned *counts, const unsigned long long *before, unsigned *payload) {
    const bool finite = state->finite != 0;
    const unsigned level = state->low & REST, larger = state->larger, equal = state->equal;
    const unsigned wanted = k - larger < equal ? k - larger : equal;
    const unsigned before_me = (1u << lane()) - 1;
    const unsigned chunks = chunks_of(n), each = chunks_of_a_thread(chunks);
    for (unsigned chunk = first_chunk(); finite && chunk < chunks; chunk = next_chunk(chunk)) {
        const unsigned long long all_before = before[place_of(chunk, each)];
        unsigned next = static_cast<unsigned>(all_before), number = static_cast<unsigned>(all_before >> 32);
        const unsigned count = counts[chunk];
        for (unsigned i = 0; i < count; i += WARP) {
            const unsigned mark = i + lane() < count ? __float_as_uint(marks[chunk * CHUNK + i + lane()]) : 0;
            const int order = i + lane() < count ? compare(mark, level) : -1;
            const unsigned above = __ballot_sync(ALL_LANES, order > 0), same = __ballot_sync(ALL_LANES, order == 0);
            unsigned slot = k;
            if (order > 0) slot = next + __popc(above & before_me);
            if (order == 0) {
                const unsigned mine = number + __popc(same & before_me);
                if (mine < wanted) slot = larger + mine;
            }
            if (slot < k) {
                const unsigned element = chunk * CHUNK + mark % CHUNK;
                const float value = residual[element];
                residual[element] = minus(value, put(payload, k, slot, element, value, halves));
            }
            next += __popc(above);
            number += __popc(same);
        }
    }
    const unsigned sent = finite ? larger + wanted : 0, thread = blockIdx.x * THREADS + threadIdx.x;
    for (unsigned slot = sent + thread; slot < k; slot += gridDim.x * THREADS) {
        put(payload, k, slot, slot - sent, finite ? 0.0f : __uint_as_float(NOT_A_NUMBER), halves);
    }
    if (halves && k % 2 != 0 && thread == 0) reinterpret_cast<unsigned short *>(payload + k)[k] = 0;
}

// Indices within a payload differ, except in unused slots, whose value is 0: no element is added to concurrently.
// An index out of range cannot be refused without waiting for the device: it makes an element NaN.
extern "C" __global__ void __launch_bounds__(THREADS)
add(const unsigned *payload, unsigned n, unsigned k, unsigned halves, float *into) {
    for (unsigned slot = blockIdx.x * THREADS + threadIdx.x; slot < k; slot += gridDim.x * THREADS) {
        const unsigned element = payload[slot];
        const float value = halves ? single_of(reinterpret_cast<const unsigned short *>(payload + k)[slot])
                                   : reinterpret_cast<const float *>(payload + k)[slot];
        if (element >= n) {
            into[slot] = __uint_as_float(NOT_A_NUMBER);
        } else if (magnitude(value) != 0) {
            into[element] = plus(into[element], value);
        }
    }
}

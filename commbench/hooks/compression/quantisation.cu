// Quantisation to int8 with error feedback, in one launch and one pass over the data for each part of the exchange:
//
//   quantise    adds the residual; finds each block's largest magnitude, its scale and int8 values; keeps the errors
//   combine     multiplies out one shard of every rank, adds in the order of the ranks, and quantises the sum
//   dequantise  multiplies out a whole payload
//
// A warp works on one block at a time. It holds a block of at most TILE elements in registers, so it reads nothing
// twice; a longer block is read again, mostly from the cache. A payload has one row per shard: the float32 scales of its
// blocks, then its int8 values. Every element is read and written by the same lane, so the new residual may replace the
// old one.

constexpr unsigned ROWS = 8;  // elements of a lane in flight at once
constexpr unsigned TILE = ROWS * WARP;

// Bits of 2^127: larger sums are sent as NaN, because 127 x scale may overflow. Bits of 2^-126: with a smaller scale,
// 1 / scale could overflow, so the block is sent as zeros.
constexpr unsigned TOO_LARGE = 0x7f000000u, LEAST_SCALE = 0x00800000u;
constexpr float STEPS = 127.0f;
// 1.5 x 2^23: adding it rounds to a whole number, ties to even, in the low bits of the sum.
constexpr float ROUNDER = 12582912.0f;

struct Sizes {
    unsigned shard;  // elements of a shard
    unsigned block;  // elements that share a scale, at most a shard

    __device__ unsigned blocks() const { return (shard + block - 1) / block; }

    __device__ unsigned long long row_bytes() const { return 4ull * blocks() + shard; }
};

// One block of a shard: where it begins in the shard, and how many elements it has.
struct Block {
    unsigned number, begin, size;

    __device__ Block(const Sizes &sizes, unsigned which) : number(which), begin(which * sizes.block) {
        size = sizes.shard - begin < sizes.block ? sizes.shard - begin : sizes.block;
    }
};

__device__ float *scales_of(unsigned char *row) { return reinterpret_cast<float *>(row); }

__device__ const float *scales_of(const unsigned char *row) { return reinterpret_cast<const float *>(row); }

__device__ signed char *values_of(unsigned char *row, const Sizes &sizes, const Block &block) {
    return reinterpret_cast<signed char *>(row + 4ull * sizes.blocks() + block.begin);
}

__device__ const signed char *values_of(const unsigned char *row, const Sizes &sizes, const Block &block) {
    return reinterpret_cast<const signed char *>(row + 4ull * sizes.blocks() + block.begin);
}

// The warps of all thread blocks take blocks of elements in turn.
__device__ unsigned first_block() { return (blockIdx.x * THREADS + threadIdx.x) / WARP; }

__device__ unsigned next_block(unsigned number) { return number + gridDim.x * (THREADS / WARP); }

// ----------------------------------------------------------------------------------------------------------- packing

__device__ unsigned largest_of(const float (&sums)[ROWS], unsigned largest) {
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned key = magnitude(sums[row]);
        if (key > largest) largest = key;
    }
    return largest;
}

__device__ unsigned largest_of_warp(unsigned largest) {
    for (unsigned other = WARP / 2; other != 0; other /= 2) {
        const unsigned key = __shfl_xor_sync(ALL_LANES, largest, other);
        if (key > largest) largest = key;
    }
    return largest;
}

// The scale of a block by the bits of its largest magnitude: NaN if it cannot be sent, 0 if it is too small.
__device__ float scale_of(unsigned largest) {
    if (largest >= TOO_LARGE) return __uint_as_float(NOT_A_NUMBER);
    const float scale = over(__uint_as_float(largest), STEPS);
    return __float_as_uint(scale) >= LEAST_SCALE ? scale : 0.0f;
}

__device__ bool is_finite(float scale) { return __float_as_uint(scale) < NOT_A_NUMBER; }

// What turns the sums of a block into int8; with scale 0 or NaN all of them are 0.
struct Packer {
    float scale, inverse;

    __device__ explicit Packer(float of) : scale(of), inverse(0.0f) {
        if (is_finite(of) && magnitude(of) != 0) {
            inverse = over(1.0f, of);
        } else {
            scale = 0.0f;
        }
    }

    // Returns the int8 of a sum, and its rounding error.
    __device__ signed char pack(float sum, float *error) const {
        if (magnitude(scale) == 0) {
            *error = sum;
            return 0;
        }
        const float rounded = plus(times(sum, inverse), ROUNDER);
        *error = minus(sum, times(minus(rounded, ROUNDER), scale));
        return static_cast<signed char>(__float_as_uint(rounded));
    }
};

// ---------------------------------------------------------------------------------------------------------- quantise

// A tile of gradient + residual from element `start` on; 0 from element `end` on.
__device__ void load(float (&sums)[ROWS], const float *gradient, const float *residual, unsigned start, unsigned end) {
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned i = start + row * WARP + lane();
        sums[row] = i < end ? gradient[i] : 0.0f;
    }
#pragma unroll
    for (unsigned row = 0; row < ROWS; ++row) {
        const unsigned i = start + row * WARP + lane();
        if (i < end) sums[row] = plus(sums[row], residual[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantise(const float *gradient, float *residual, unsigned n, unsigned shards, unsigned shard,
         unsigned block_size, unsigned char *payload) {
    const Sizes sizes = {shard, block_size};
    for (unsigned which = first_block(); which < shards * sizes.blocks(); which = next_block(which)) {
        const unsigned row_number = which / sizes.blocks();
        const Block block(sizes, which % sizes.blocks());
        unsigned char *row = payload + row_number * sizes.row_bytes();
        const unsigned long long first = static_cast<unsigned long long>(row_number) * shard + block.begin;
        const unsigned start = first < n ? static_cast<unsigned>(first) : n;
        const unsigned end = n - start < block.size ? n : start + block.size;
        float sums[ROWS];
        unsigned largest = 0;
        for (unsigned at = 0; at < block.size; at += TILE) {
            load(sums, gradient, residual, start + at, end);
            largest = largest_of(sums, largest);
        }
        const float scale = scale_of(largest_of_warp(largest));
        const Packer packer(scale);
        if (lane() == 0) scales_of(row)[block.number] = scale;
        for (unsigned at = 0; at < block.size; at += TILE) {
            if (block.size > TILE) load(sums, gradient, residual, start + at, end);
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r) {
                const unsigned i = at + r * WARP + lane();
                float error;
                const signed char value = packer.pack(sums[r], &error);
                if (i < block.size) values_of(row, sizes, block)[i] = value;
                if (is_finite(scale) && start + i < end) residual[start + i] = error;
            }
        }
    }
}

// ----------------------------------------------------------------------------------------------------------- combine

// A tile of the sum of all ranks, from element `at` of a block on; 0 behind the block.
__device__ void add_up(float (&sums)[ROWS], const unsigned char *payload, unsigned ranks, const Sizes &sizes,
                       const Block &block, unsigned at) {
    for (unsigned rank = 0; rank < ranks; ++rank) {
        const unsigned char *row = payload + rank * sizes.row_bytes();
        const float scale = scales_of(row)[block.number];
        const signed char *values = values_of(row, sizes, block);
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) {
            const unsigned i = at + r * WARP + lane();
            const float element = i < block.size ? times(static_cast<float>(values[i]), scale) : 0.0f;
            sums[r] = rank == 0 ? element : plus(sums[r], element);
        }
    }
}

// `rest` has `elements` elements: a shard may reach beyond the bucket. The divisor lies on the device, because a loss
// scale does.
extern "C" __global__ void __launch_bounds__(THREADS)
combine(const unsigned char *payload, unsigned ranks, unsigned shard, unsigned block_size, const float *divisor,
        float *rest, unsigned elements, unsigned char *own) {
    const Sizes sizes = {shard, block_size};
    for (unsigned which = first_block(); which < sizes.blocks(); which = next_block(which)) {
        const Block block(sizes, which);
        float sums[ROWS];
        unsigned largest = 0;
        for (unsigned at = 0; at < block.size; at += TILE) {
            add_up(sums, payload, ranks, sizes, block, at);
            largest = largest_of(sums, largest);
        }
        const float scale = scale_of(largest_of_warp(largest));
        const Packer packer(scale);
        if (lane() == 0) scales_of(own)[block.number] = is_finite(scale) ? over(scale, *divisor) : scale;
        for (unsigned at = 0; at < block.size; at += TILE) {
            if (block.size > TILE) add_up(sums, payload, ranks, sizes, block, at);
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r) {
                const unsigned i = at + r * WARP + lane(), element = block.begin + i;
                float error;
                const signed char value = packer.pack(sums[r], &error);
                if (i >= block.size) continue;
                values_of(own, sizes, block)[i] = value;
                if (is_finite(scale) && element < elements) rest[element] = plus(rest[element], error);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------------- dequantise

extern "C" __global__ void __launch_bounds__(THREADS)
dequantise(const unsigned char *payload, unsigned n, unsigned shards, unsigned shard, unsigned block_size, float *into) {
    const Sizes sizes = {shard, block_size};
    for (unsigned which = first_block(); which < shards * sizes.blocks(); which = next_block(which)) {
        const unsigned row_number = which / sizes.blocks();
        const Block block(sizes, which % sizes.blocks());
        const unsigned char *row = payload + row_number * sizes.row_bytes();
        const unsigned long long start = static_cast<unsigned long long>(row_number) * shard + block.begin;
        const float scale = scales_of(row)[block.number];
        const signed char *values = values_of(row, sizes, block);
#pragma unroll 8
        for (unsigned i = lane(); i < block.size; i += WARP) {
            if (start + i < n) into[start + i] = times(static_cast<float>(values[i]), scale);
        }
    }
}

// What all kernels share: lanes of a warp, and float32 arithmetic that keeps denormals. It precedes each source.

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr unsigned MAGNITUDE = 0x7fffffffu, NOT_A_NUMBER = 0x7fc00000u;

// cupy appends -ftz=true to our options, which makes denormals zero in every operation: gradients would be lost. These
// operations keep denormals, and comparisons are of bits. The compiler never contracts two of them, which round by
// themselves, to a fused multiply-add.
#ifdef __CUDACC__
__device__ float plus(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

__device__ float minus(float a, float b) {
    float difference;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(difference) : "f"(a), "f"(b));
    return difference;
}

__device__ float times(float a, float b) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

__device__ float over(float a, float b) {
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
}
#endif

__device__ unsigned lane() { return threadIdx.x % WARP; }

__device__ unsigned magnitude(float value) { return __float_as_uint(value) & MAGNITUDE; }

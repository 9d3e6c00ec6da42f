// y = x · Wᵀ (+ bias) in bf16 through cuBLASLt, with the number of SMs as an argument: torch's own
// matmul neither tells cuBLASLt the size of a green context nor lets an algorithm be kept.
//
// A plain C interface for ctypes (gemm_library.py), so that no Python or torch headers are needed.
// Row-major x [m, k], W [n, k], y [m, n] are, in cuBLAS's column-major terms, W' (k x n, transposed),
// x' (k x m) and y' (n x m). Functions return a cublasStatus_t; 0 is success.
#include <cublasLt.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace {

constexpr size_t kAlignment = 16;  // bytes; promised for every pointer, checked by the caller

struct Lane {
  cublasLtHandle_t handle;
  void* workspace;
  size_t workspace_bytes;
};

struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t weight;
  cublasLtMatmulAlgo_t algorithm;
  int64_t n, k;
  bool bias;
};

#define TRY(call)                                         \
  do {                                                    \
    const cublasStatus_t status_ = (call);                \
    if (status_ != CUBLAS_STATUS_SUCCESS) return status_; \
  } while (0)

template <typename T>
cublasStatus_t set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const T& value) {
  return cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof(value));
}

cublasStatus_t describe(cublasLtMatmulDesc_t desc, bool bias, int sm_target) {
  TRY(cublasLtMatmulDescInit(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  TRY(set(desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
  if (sm_target > 0) TRY(set(desc, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, int32_t{sm_target}));
  if (!bias) return CUBLAS_STATUS_SUCCESS;
  // The heuristic reads the pointer's alignment only; every launch sets the real one.
  void* const placeholder = reinterpret_cast<void*>(uintptr_t{4096});
  TRY(set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, placeholder));
  return set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
}

struct Layouts {
  cublasLtMatrixLayoutOpaque_t weight, input, output;
};

cublasStatus_t lay_out(Layouts* layouts, int64_t m, int64_t n, int64_t k) {
  TRY(cublasLtMatrixLayoutInit(&layouts->weight, CUDA_R_16BF, k, n, k));
  TRY(cublasLtMatrixLayoutInit(&layouts->input, CUDA_R_16BF, k, m, k));
  // Rows of the output start at multiples of 16 bytes, whatever n is: the caller sees to that.
  return cublasLtMatrixLayoutInit(&layouts->output, CUDA_R_16BF, n, m, (n + 7) / 8 * 8);
}

cublasStatus_t prefer(cublasLtMatmulPreference_t preference, size_t workspace_bytes) {
  const uint64_t bytes = workspace_bytes;
  const uint32_t alignment = kAlignment;
  TRY(cublasLtMatmulPreferenceInit(preference));
  TRY(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)));
  for (const auto name :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, name, &alignment, sizeof(alignment)));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

size_t tandem_gemm_version() { return cublasLtGetVersion(); }

int tandem_gemm_open(void** handle) {
  return cublasLtCreate(reinterpret_cast<cublasLtHandle_t*>(handle));
}

// Up to `limit` algorithms, best first by the heuristic: 64 bytes each into `algorithms`, bytes of
// workspace into `workspaces`. `*found` counts them. sm_target 0: the whole device.
int tandem_gemm_candidates(void* handle, int64_t m, int64_t n, int64_t k, int bias, int sm_target,
                           size_t workspace_bytes, int limit, uint8_t* algorithms,
                           size_t* workspaces, int* found) {
  constexpr int kMost = 128;
  if (limit < 1 || limit > kMost) return CUBLAS_STATUS_INVALID_VALUE;
  cublasLtMatmulDescOpaque_t operation;
  Layouts layouts;
  cublasLtMatmulPreferenceOpaque_t preference;
  TRY(describe(&operation, bias != 0, sm_target));
  TRY(lay_out(&layouts, m, n, k));
  TRY(prefer(&preference, workspace_bytes));
  cublasLtMatmulHeuristicResult_t results[kMost];
  int returned = 0;
  TRY(cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle), &operation,
                                     &layouts.weight, &layouts.input, &layouts.output,
                                     &layouts.output, &preference, limit, results, &returned));
  *found = 0;
  for (int i = 0; i < returned; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    std::memcpy(algorithms + 64 * *found, &results[i].algo, 64);
    workspaces[(*found)++] = results[i].workspaceSize;
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Whether a kept algorithm can still run this shape here; its workspace into `*workspace_bytes`.
int tandem_gemm_check(void* handle, int64_t m, int64_t n, int64_t k, int bias, int sm_target,
                      const uint8_t* algorithm, size_t* workspace_bytes) {
  cublasLtMatmulDescOpaque_t operation;
  Layouts layouts;
  cublasLtMatmulAlgo_t kept;
  std::memcpy(&kept, algorithm, sizeof(kept));
  TRY(describe(&operation, bias != 0, sm_target));
  TRY(lay_out(&layouts, m, n, k));
  cublasLtMatmulHeuristicResult_t result;
  TRY(cublasLtMatmulAlgoCheck(static_cast<cublasLtHandle_t>(handle), &operation, &layouts.weight,
                              &layouts.input, &layouts.output, &layouts.output, &kept, &result));
  *workspace_bytes = result.workspaceSize;
  return result.state;
}

// Algorithm id, tile, stages, split-K, cluster shape (cuBLASLt's numbers), for filters and reports.
int tandem_gemm_describe(const uint8_t* algorithm, int32_t* values) {
  cublasLtMatmulAlgo_t kept;
  std::memcpy(&kept, algorithm, sizeof(kept));
  const cublasLtMatmulAlgoConfigAttributes_t names[] = {
      CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
      CUBLASLT_ALGO_CONFIG_SPLITK_NUM};
  size_t written;
  for (int i = 0; i < 4; ++i)
    TRY(cublasLtMatmulAlgoConfigGetAttribute(&kept, names[i], &values[i], 4, &written));
  uint16_t cluster = 0;
  TRY(cublasLtMatmulAlgoConfigGetAttribute(&kept, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                           sizeof(cluster), &written));
  values[4] = cluster;
  return CUBLAS_STATUS_SUCCESS;
}

int tandem_gemm_plan(int64_t n, int64_t k, int bias, int sm_target, const uint8_t* algorithm,
                     void** plan) {
  Plan* made = new (std::nothrow) Plan;
  if (made == nullptr) return CUBLAS_STATUS_ALLOC_FAILED;
  *plan = made;  // owned by the caller from here on, also after a failure
  made->n = n;
  made->k = k;
  made->bias = bias != 0;
  std::memcpy(&made->algorithm, algorithm, sizeof(made->algorithm));
  TRY(describe(&made->operation, made->bias, sm_target));
  return cublasLtMatrixLayoutInit(&made->weight, CUDA_R_16BF, k, n, k);
}

void tandem_gemm_drop(void* plan) { delete static_cast<Plan*>(plan); }

int tandem_gemm_lane(void* handle, void* workspace, size_t workspace_bytes, void** lane) {
  Lane* made = new (std::nothrow) Lane{static_cast<cublasLtHandle_t>(handle), workspace,
                                       workspace_bytes};
  *lane = made;
  return made == nullptr ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}

void tandem_gemm_close_lane(void* lane) { delete static_cast<Lane*>(lane); }

// x [m, k] and y [m, n], rows x_stride and y_stride elements apart. No allocation, no synchronisation.
// A plan is not for two threads at once (its bias pointer is set here).
int tandem_gemm_run(void* lane_pointer, void* plan_pointer, int64_t m, const void* x,
                    int64_t x_stride, const void* weight, const void* bias, void* y,
                    int64_t y_stride, void* stream) {
  const Lane& lane = *static_cast<Lane*>(lane_pointer);
  Plan& plan = *static_cast<Plan*>(plan_pointer);
  cublasLtMatrixLayoutOpaque_t input, output;
  TRY(cublasLtMatrixLayoutInit(&input, CUDA_R_16BF, plan.k, m, x_stride));
  TRY(cublasLtMatrixLayoutInit(&output, CUDA_R_16BF, plan.n, m, y_stride));
  if (plan.bias) TRY(set(&plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  const float one = 1.0f, zero = 0.0f;
  return cublasLtMatmul(lane.handle, &plan.operation, &one, weight, &plan.weight, x, &input, &zero,
                        y, &output, y, &output, &plan.algorithm, lane.workspace,
                        lane.workspace_bytes, static_cast<cudaStream_t>(stream));
}
}

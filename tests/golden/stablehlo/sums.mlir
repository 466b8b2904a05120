module @sums attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%arg0: tensor<3xf32> loc("a"), %arg1: tensor<f32> loc("b"), %arg2: tensor<2x4xf32> loc("c")) -> (tensor<3xf32> {jax.result_info = "a"}, tensor<f32> {jax.result_info = "b"}, tensor<2x4xf32> {jax.result_info = "c"}) {
    %0 = stablehlo.replica_id : tensor<ui32>
    %1:3 = stablehlo.custom_call @"phalanx.sum"(%0, %arg0, %arg1) {api_version = 4 : i32, backend_config = {"number" = 0 : i64, "patience_seconds" = 60 : i64, "replicas" = 2 : i64}, has_side_effect = false} : (tensor<ui32>, tensor<3xf32>, tensor<f32>) -> (tensor<ui32>, tensor<3xf32>, tensor<f32>)
    %2:2 = stablehlo.custom_call @"phalanx.sum"(%1#0, %arg2) {api_version = 4 : i32, backend_config = {"number" = 1 : i64, "patience_seconds" = 60 : i64, "replicas" = 2 : i64}, has_side_effect = false} : (tensor<ui32>, tensor<2x4xf32>) -> (tensor<ui32>, tensor<2x4xf32>)
    return %1#1, %1#2, %2#1 : tensor<3xf32>, tensor<f32>, tensor<2x4xf32>
  }
}

module @kernels_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64x8x8x4xbf16> loc("x"), %arg1: tensor<3x3x4x6xbf16> loc("kernel"), %arg2: tensor<6xbf16> loc("bias"), %arg3: tensor<6xf32> loc("gamma"), %arg4: tensor<6xf32> loc("beta")) -> (tensor<bf16> {jax.result_info = "loss"}, tensor<3x3x4x6xbf16> {jax.result_info = "kernel"}, tensor<6xbf16> {jax.result_info = "bias"}, tensor<6xf32> {jax.result_info = "gamma"}) {
    %0 = stablehlo.custom_call @"phalanx.conv"(%arg0, %arg1, %arg2) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "relu" = false, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<64x8x8x4xbf16>, tensor<3x3x4x6xbf16>, tensor<6xbf16>) -> (tensor<64x8x8x6xbf16>)
    %1:3 = stablehlo.custom_call @"phalanx.batch_norm"(%0, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>)
    %2:2 = stablehlo.custom_call @"phalanx.max_pool"(%1#0) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<64x8x8x6xbf16>) -> (tensor<64x4x4x6xbf16>, tensor<64x4x4x6xui8>)
    %3 = stablehlo.multiply %2#0, %2#0 : tensor<64x4x4x6xbf16>
    %4 = stablehlo.convert %3 : (tensor<64x4x4x6xbf16>) -> tensor<64x4x4x6xf32>
    %5 = stablehlo.constant dense<0.0> : tensor<f32>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<64x4x4x6xf32>, tensor<f32>) -> tensor<f32>
    %7 = stablehlo.convert %6 : (tensor<f32>) -> tensor<bf16>
    %8 = stablehlo.add %2#0, %2#0 : tensor<64x4x4x6xbf16>
    %9 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%2#1, %8) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<64x4x4x6xui8>, tensor<64x4x4x6xbf16>) -> (tensor<64x8x8x6xbf16>)
    %10:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%9, %0, %1#1, %1#2, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<64x8x8x6xbf16>, tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>)
    %11 = stablehlo.custom_call @"phalanx.column_sums"(%10#0) {api_version = 4 : i32, backend_config = {}, has_side_effect = false} : (tensor<64x8x8x6xbf16>) -> (tensor<6xbf16>)
    %12 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%arg0, %10#0) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<64x8x8x4xbf16>, tensor<64x8x8x6xbf16>) -> (tensor<3x3x4x6xbf16>)
    return %7, %12, %11, %10#1 : tensor<bf16>, tensor<3x3x4x6xbf16>, tensor<6xbf16>, tensor<6xf32>
  }
}

module @kernels_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64x8x8x4xbf16> loc("x"), %arg1: tensor<3x3x4x6xbf16> loc("kernel"), %arg2: tensor<6xbf16> loc("bias"), %arg3: tensor<6xf32> loc("gamma"), %arg4: tensor<6xf32> loc("beta")) -> (tensor<bf16> {jax.result_info = "loss"}, tensor<3x3x4x6xbf16> {jax.result_info = "kernel"}, tensor<6xbf16> {jax.result_info = "bias"}, tensor<6xf32> {jax.result_info = "gamma"}) {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [3] : (tensor<6xbf16>) -> tensor<64x8x8x6xbf16>
    %1 = stablehlo.custom_call @"phalanx.conv"(%arg0, %arg1, %arg2) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "relu" = false, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<64x8x8x4xbf16>, tensor<3x3x4x6xbf16>, tensor<6xbf16>) -> (tensor<64x8x8x6xbf16>)
    %2:3 = stablehlo.custom_call @"phalanx.batch_norm"(%1, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>)
    %3 = stablehlo.add %2#0, %0 : tensor<64x8x8x6xbf16>
    %4:2 = stablehlo.custom_call @"phalanx.max_pool"(%3) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<64x8x8x6xbf16>) -> (tensor<64x4x4x6xbf16>, tensor<64x4x4x6xui8>)
    %5 = stablehlo.multiply %4#0, %4#0 : tensor<64x4x4x6xbf16>
    %6 = stablehlo.convert %5 : (tensor<64x4x4x6xbf16>) -> tensor<64x4x4x6xf32>
    %7 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.reduce(%6 init: %7) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<64x4x4x6xf32>, tensor<f32>) -> tensor<f32>
    %9 = stablehlo.convert %8 : (tensor<f32>) -> tensor<bf16>
    %10 = stablehlo.add %4#0, %4#0 : tensor<64x4x4x6xbf16>
    %11 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%4#1, %10) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<64x4x4x6xui8>, tensor<64x4x4x6xbf16>) -> (tensor<64x8x8x6xbf16>)
    %12 = stablehlo.reshape %11 : (tensor<64x8x8x6xbf16>) -> tensor<4096x6xbf16>
    %13 = stablehlo.custom_call @"phalanx.column_sums"(%12) {api_version = 4 : i32, backend_config = {}, has_side_effect = false} : (tensor<4096x6xbf16>) -> (tensor<6xbf16>)
    %14:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%11, %1, %2#1, %2#2, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<64x8x8x6xbf16>, tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<64x8x8x6xbf16>, tensor<6xf32>, tensor<6xf32>)
    %15 = stablehlo.add %14#1, %14#2 : tensor<6xf32>
    %16 = stablehlo.constant dense<0.0> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %18 = stablehlo.multiply %15, %17 : tensor<6xf32>
    %19 = stablehlo.convert %18 : (tensor<6xf32>) -> tensor<6xbf16>
    %20 = stablehlo.add %13, %19 : tensor<6xbf16>
    %21 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%arg0, %14#0) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<64x8x8x4xbf16>, tensor<64x8x8x6xbf16>) -> (tensor<3x3x4x6xbf16>)
    return %9, %21, %20, %14#1 : tensor<bf16>, tensor<3x3x4x6xbf16>, tensor<6xbf16>, tensor<6xf32>
  }
}

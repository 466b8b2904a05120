module @kernels_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x8x8x4xbf16> loc("x"), %arg1: tensor<3x3x4x6xbf16> loc("kernel"), %arg2: tensor<6xbf16> loc("gamma"), %arg3: tensor<6xbf16> loc("beta")) -> (tensor<bf16> {jax.result_info = "loss"}, tensor<3x3x4x6xbf16> {jax.result_info = "kernel"}, tensor<6xbf16> {jax.result_info = "gamma"}) {
    %0 = stablehlo.custom_call @"phalanx.conv"(%arg0, %arg1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x8x8x4xbf16>, tensor<3x3x4x6xbf16>) -> (tensor<2x8x8x6xbf16>)
    %1 = stablehlo.convert %0 : (tensor<2x8x8x6xbf16>) -> tensor<2x8x8x6xf32>
    %2 = stablehlo.convert %arg2 : (tensor<6xbf16>) -> tensor<6xf32>
    %3 = stablehlo.convert %arg3 : (tensor<6xbf16>) -> tensor<6xf32>
    %4:3 = stablehlo.custom_call @"phalanx.batch_norm"(%1, %2, %3) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x8x8x6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x8x8x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %5 = stablehlo.convert %4#0 : (tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xbf16>
    %6 = stablehlo.convert %4#1 : (tensor<6xf32>) -> tensor<6xbf16>
    %7 = stablehlo.convert %4#2 : (tensor<6xf32>) -> tensor<6xbf16>
    %8 = stablehlo.convert %5 : (tensor<2x8x8x6xbf16>) -> tensor<2x8x8x6xf32>
    %9:2 = stablehlo.custom_call @"phalanx.max_pool"(%8) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x8x8x6xf32>) -> (tensor<2x4x4x6xf32>, tensor<2x4x4x6xui8>)
    %10 = stablehlo.convert %9#0 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %11 = stablehlo.multiply %10, %10 : tensor<2x4x4x6xbf16>
    %12 = stablehlo.convert %11 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %13 = stablehlo.constant dense<0.0> : tensor<f32>
    %14 = stablehlo.reduce(%12 init: %13) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<2x4x4x6xf32>, tensor<f32>) -> tensor<f32>
    %15 = stablehlo.convert %14 : (tensor<f32>) -> tensor<bf16>
    %16 = stablehlo.add %10, %10 : tensor<2x4x4x6xbf16>
    %17 = stablehlo.convert %16 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %18 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%9#1, %17) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xui8>, tensor<2x4x4x6xf32>) -> (tensor<2x8x8x6xf32>)
    %19 = stablehlo.convert %18 : (tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xbf16>
    %20 = stablehlo.convert %19 : (tensor<2x8x8x6xbf16>) -> tensor<2x8x8x6xf32>
    %21 = stablehlo.convert %0 : (tensor<2x8x8x6xbf16>) -> tensor<2x8x8x6xf32>
    %22 = stablehlo.convert %6 : (tensor<6xbf16>) -> tensor<6xf32>
    %23 = stablehlo.convert %7 : (tensor<6xbf16>) -> tensor<6xf32>
    %24 = stablehlo.convert %arg2 : (tensor<6xbf16>) -> tensor<6xf32>
    %25 = stablehlo.convert %arg3 : (tensor<6xbf16>) -> tensor<6xf32>
    %26:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%20, %21, %22, %23, %24, %25) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<2x8x8x6xf32>, tensor<2x8x8x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x8x8x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %27 = stablehlo.convert %26#0 : (tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xbf16>
    %28 = stablehlo.convert %26#1 : (tensor<6xf32>) -> tensor<6xbf16>
    %29 = stablehlo.convert %26#2 : (tensor<6xf32>) -> tensor<6xbf16>
    %30 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%arg0, %27) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 1, 1>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x8x8x4xbf16>, tensor<2x8x8x6xbf16>) -> (tensor<3x3x4x6xbf16>)
    return %15, %30, %28 : tensor<bf16>, tensor<3x3x4x6xbf16>, tensor<6xbf16>
  }
}

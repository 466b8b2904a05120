module @kernels attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x9x9x4xbf16> loc("x"), %arg1: tensor<3x3x2x6xbf16> loc("kernel"), %arg2: tensor<3x6x2xf32> loc("line")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x9x9x4xbf16> {jax.result_info = "x"}, tensor<3x3x2x6xbf16> {jax.result_info = "kernel"}, tensor<3x6x2xf32> {jax.result_info = "line"}) {
    %0 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %1 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %2 = stablehlo.custom_call @"phalanx.conv"(%0, %1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x4x4x6xf32>)
    %3 = stablehlo.convert %2 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %4 = stablehlo.convert %3 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %5:2 = stablehlo.custom_call @"phalanx.max_pool"(%4) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<2x2x4x6xui8>)
    %6 = stablehlo.convert %5#0 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %7 = stablehlo.convert %6 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %8 = stablehlo.reshape %7 : (tensor<2x2x4x6xf32>) -> tensor<2x8x6xf32>
    %9 = stablehlo.convolution(%8, %arg2) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<3x6x2xf32>) -> tensor<2x4x2xf32>
    %10 = stablehlo.multiply %9, %9 : tensor<2x4x2xf32>
    %11 = stablehlo.constant dense<0.0> : tensor<f32>
    %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x2xf32>, tensor<f32>) -> tensor<f32>
    %13 = stablehlo.add %9, %9 : tensor<2x4x2xf32>
    %14 = stablehlo.reverse %arg2, dims = [0] : tensor<3x6x2xf32>
    %15 = stablehlo.convolution(%13, %14) dim_numbers = [b, 0, f]x[0, o, i]->[b, 0, f], window = {stride = [1], pad = [[2, 1]], lhs_dilate = [2], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x2xf32>, tensor<3x6x2xf32>) -> tensor<2x8x6xf32>
    %16 = stablehlo.convolution(%8, %13) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {stride = [1], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<2x4x2xf32>) -> tensor<3x6x2xf32>
    %17 = stablehlo.reshape %15 : (tensor<2x8x6xf32>) -> tensor<2x2x4x6xf32>
    %18 = stablehlo.convert %17 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %19 = stablehlo.convert %18 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %20 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%5#1, %19) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x2x4x6xui8>, tensor<2x2x4x6xf32>) -> (tensor<2x4x4x6xf32>)
    %21 = stablehlo.convert %20 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %22 = stablehlo.convert %21 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %23 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %24 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%22, %23) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x9x9x4xf32>)
    %25 = stablehlo.convert %24 : (tensor<2x9x9x4xf32>) -> tensor<2x9x9x4xbf16>
    %26 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %27 = stablehlo.convert %21 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %28 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%26, %27) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<2x4x4x6xf32>) -> (tensor<3x3x2x6xf32>)
    %29 = stablehlo.convert %28 : (tensor<3x3x2x6xf32>) -> tensor<3x3x2x6xbf16>
    return %12, %25, %29, %16 : tensor<f32>, tensor<2x9x9x4xbf16>, tensor<3x3x2x6xbf16>, tensor<3x6x2xf32>
  }
}

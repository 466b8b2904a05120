module @kernels attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x9x9x4xbf16> loc("x"), %arg1: tensor<3x3x2x6xbf16> loc("kernel"), %arg2: tensor<3x6x2xf32> loc("line"), %arg3: tensor<6xf32> loc("gamma"), %arg4: tensor<6xf32> loc("beta"), %arg5: tensor<6xf32> loc("bias"), %arg6: tensor<1x1x6x6xf32> loc("pointwise")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x9x9x4xbf16> {jax.result_info = "x"}, tensor<3x3x2x6xbf16> {jax.result_info = "kernel"}, tensor<3x6x2xf32> {jax.result_info = "line"}) {
    %0 = stablehlo.custom_call @"phalanx.conv"(%arg0, %arg1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xbf16>, tensor<3x3x2x6xbf16>) -> (tensor<2x4x4x6xbf16>)
    %1:2 = stablehlo.custom_call @"phalanx.max_pool"(%0) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x4x4x6xbf16>) -> (tensor<2x2x4x6xbf16>, tensor<2x2x4x6xui8>)
    %2 = stablehlo.convert %1#0 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %3 = stablehlo.custom_call @"phalanx.conv"(%2, %arg6, %arg5) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "relu" = true, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>)
    %4 = stablehlo.constant dense<0.0> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<2x2x4x6xf32>
    %6:3 = stablehlo.custom_call @"phalanx.batch_norm"(%3, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %7:3 = stablehlo.custom_call @"phalanx.batch_norm"(%6#0, %arg3, %arg4, %2) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %8 = stablehlo.reshape %7#0 : (tensor<2x2x4x6xf32>) -> tensor<2x8x6xf32>
    %9 = stablehlo.convolution(%8, %arg2) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<3x6x2xf32>) -> tensor<2x4x2xf32>
    %10 = stablehlo.multiply %9, %9 : tensor<2x4x2xf32>
    %11 = stablehlo.constant dense<0.0> : tensor<f32>
    %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x2xf32>, tensor<f32>) -> tensor<f32>
    %13 = stablehlo.add %9, %9 : tensor<2x4x2xf32>
    %14 = stablehlo.reverse %arg2, dims = [0] : tensor<3x6x2xf32>
    %15 = stablehlo.convolution(%13, %14) dim_numbers = [b, 0, f]x[0, o, i]->[b, 0, f], window = {stride = [1], pad = [[2, 1]], lhs_dilate = [2], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x2xf32>, tensor<3x6x2xf32>) -> tensor<2x8x6xf32>
    %16 = stablehlo.convolution(%8, %13) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {stride = [1], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<2x4x2xf32>) -> tensor<3x6x2xf32>
    %17 = stablehlo.reshape %15 : (tensor<2x8x6xf32>) -> tensor<2x2x4x6xf32>
    %18:4 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%17, %6#0, %7#1, %7#2, %arg3, %7#0) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>)
    %19:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%18#0, %3, %6#1, %6#2, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %20 = stablehlo.compare GT, %3, %5 : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xi1>
    %21 = stablehlo.select %20, %19#0, %5 : tensor<2x2x4x6xi1>, tensor<2x2x4x6xf32>
    %22 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%21, %arg6) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>) -> (tensor<2x2x4x6xf32>)
    %23 = stablehlo.add %18#3, %22 : tensor<2x2x4x6xf32>
    %24 = stablehlo.convert %23 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %25 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%1#1, %24) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x2x4x6xui8>, tensor<2x2x4x6xbf16>) -> (tensor<2x4x4x6xbf16>)
    %26 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%25, %arg1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xbf16>, tensor<3x3x2x6xbf16>) -> (tensor<2x9x9x4xbf16>)
    %27 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%arg0, %25) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xbf16>, tensor<2x4x4x6xbf16>) -> (tensor<3x3x2x6xbf16>)
    return %12, %26, %27, %16 : tensor<f32>, tensor<2x9x9x4xbf16>, tensor<3x3x2x6xbf16>, tensor<3x6x2xf32>
  }
}

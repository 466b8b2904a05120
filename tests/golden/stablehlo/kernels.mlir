module @kernels attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x9x9x4xbf16> loc("x"), %arg1: tensor<3x3x2x6xbf16> loc("kernel"), %arg2: tensor<3x6x2xf32> loc("line"), %arg3: tensor<6xf32> loc("gamma"), %arg4: tensor<6xf32> loc("beta"), %arg5: tensor<6xf32> loc("bias"), %arg6: tensor<1x1x6x6xf32> loc("pointwise")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x9x9x4xbf16> {jax.result_info = "x"}, tensor<3x3x2x6xbf16> {jax.result_info = "kernel"}, tensor<3x6x2xf32> {jax.result_info = "line"}) {
    %0 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %1 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %2 = stablehlo.custom_call @"phalanx.conv"(%0, %1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x4x4x6xf32>)
    %3 = stablehlo.convert %2 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %4:2 = stablehlo.custom_call @"phalanx.max_pool"(%3) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x4x4x6xbf16>) -> (tensor<2x2x4x6xbf16>, tensor<2x2x4x6xui8>)
    %5 = stablehlo.convert %4#0 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %6 = stablehlo.custom_call @"phalanx.conv"(%5, %arg6, %arg5) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "relu" = true, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>)
    %7 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<2x2x4x6xf32>
    %9:3 = stablehlo.custom_call @"phalanx.batch_norm"(%6, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %10:3 = stablehlo.custom_call @"phalanx.batch_norm"(%9#0, %arg3, %arg4, %5) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %11 = stablehlo.reshape %10#0 : (tensor<2x2x4x6xf32>) -> tensor<2x8x6xf32>
    %12 = stablehlo.convolution(%11, %arg2) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<3x6x2xf32>) -> tensor<2x4x2xf32>
    %13 = stablehlo.multiply %12, %12 : tensor<2x4x2xf32>
    %14 = stablehlo.constant dense<0.0> : tensor<f32>
    %15 = stablehlo.reduce(%13 init: %14) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x2xf32>, tensor<f32>) -> tensor<f32>
    %16 = stablehlo.add %12, %12 : tensor<2x4x2xf32>
    %17 = stablehlo.reverse %arg2, dims = [0] : tensor<3x6x2xf32>
    %18 = stablehlo.convolution(%16, %17) dim_numbers = [b, 0, f]x[0, o, i]->[b, 0, f], window = {stride = [1], pad = [[2, 1]], lhs_dilate = [2], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x2xf32>, tensor<3x6x2xf32>) -> tensor<2x8x6xf32>
    %19 = stablehlo.convolution(%11, %16) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {stride = [1], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<2x4x2xf32>) -> tensor<3x6x2xf32>
    %20 = stablehlo.reshape %18 : (tensor<2x8x6xf32>) -> tensor<2x2x4x6xf32>
    %21:4 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%20, %9#0, %10#1, %10#2, %arg3, %10#0) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>)
    %22:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%21#0, %6, %9#1, %9#2, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %23 = stablehlo.compare GT, %6, %8 : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xi1>
    %24 = stablehlo.select %23, %22#0, %8 : tensor<2x2x4x6xi1>, tensor<2x2x4x6xf32>
    %25 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%24, %arg6) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>) -> (tensor<2x2x4x6xf32>)
    %26 = stablehlo.add %21#3, %25 : tensor<2x2x4x6xf32>
    %27 = stablehlo.convert %26 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %28 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%4#1, %27) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x2x4x6xui8>, tensor<2x2x4x6xbf16>) -> (tensor<2x4x4x6xbf16>)
    %29 = stablehlo.convert %28 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %30 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %31 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%29, %30) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x9x9x4xf32>)
    %32 = stablehlo.convert %31 : (tensor<2x9x9x4xf32>) -> tensor<2x9x9x4xbf16>
    %33 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %34 = stablehlo.convert %28 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %35 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%33, %34) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<2x4x4x6xf32>) -> (tensor<3x3x2x6xf32>)
    %36 = stablehlo.convert %35 : (tensor<3x3x2x6xf32>) -> tensor<3x3x2x6xbf16>
    return %15, %32, %36, %19 : tensor<f32>, tensor<2x9x9x4xbf16>, tensor<3x3x2x6xbf16>, tensor<3x6x2xf32>
  }
}

module @kernels attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x9x9x4xbf16> loc("x"), %arg1: tensor<3x3x2x6xbf16> loc("kernel"), %arg2: tensor<3x6x2xf32> loc("line"), %arg3: tensor<6xf32> loc("gamma"), %arg4: tensor<6xf32> loc("beta"), %arg5: tensor<6xf32> loc("bias"), %arg6: tensor<1x1x6x6xf32> loc("pointwise")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x9x9x4xbf16> {jax.result_info = "x"}, tensor<3x3x2x6xbf16> {jax.result_info = "kernel"}, tensor<3x6x2xf32> {jax.result_info = "line"}) {
    %0 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %1 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %2 = stablehlo.custom_call @"phalanx.conv"(%0, %1) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x4x4x6xf32>)
    %3 = stablehlo.convert %2 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %4 = stablehlo.convert %3 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %5:2 = stablehlo.custom_call @"phalanx.max_pool"(%4) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<2x2x4x6xui8>)
    %6 = stablehlo.convert %5#0 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %7 = stablehlo.convert %6 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %8 = stablehlo.custom_call @"phalanx.conv"(%7, %arg6, %arg5) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "relu" = true, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>)
    %9 = stablehlo.constant dense<0.0> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<2x2x4x6xf32>
    %11:3 = stablehlo.custom_call @"phalanx.batch_norm"(%8, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %12:3 = stablehlo.custom_call @"phalanx.batch_norm"(%11#0, %arg3, %arg4, %7) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32, "relu" = true}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %13 = stablehlo.reshape %12#0 : (tensor<2x2x4x6xf32>) -> tensor<2x8x6xf32>
    %14 = stablehlo.convolution(%13, %arg2) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<3x6x2xf32>) -> tensor<2x4x2xf32>
    %15 = stablehlo.multiply %14, %14 : tensor<2x4x2xf32>
    %16 = stablehlo.constant dense<0.0> : tensor<f32>
    %17 = stablehlo.reduce(%15 init: %16) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x2xf32>, tensor<f32>) -> tensor<f32>
    %18 = stablehlo.add %14, %14 : tensor<2x4x2xf32>
    %19 = stablehlo.reverse %arg2, dims = [0] : tensor<3x6x2xf32>
    %20 = stablehlo.convolution(%18, %19) dim_numbers = [b, 0, f]x[0, o, i]->[b, 0, f], window = {stride = [1], pad = [[2, 1]], lhs_dilate = [2], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x2xf32>, tensor<3x6x2xf32>) -> tensor<2x8x6xf32>
    %21 = stablehlo.convolution(%13, %18) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window = {stride = [1], pad = [[0, 1]], lhs_dilate = [1], rhs_dilate = [2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x8x6xf32>, tensor<2x4x2xf32>) -> tensor<3x6x2xf32>
    %22 = stablehlo.reshape %20 : (tensor<2x8x6xf32>) -> tensor<2x2x4x6xf32>
    %23:4 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%22, %11#0, %12#1, %12#2, %arg3, %12#0) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "epsilon" = 0.002 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<2x2x4x6xf32>)
    %24:3 = stablehlo.custom_call @"phalanx.batch_norm_gradient"(%23#0, %8, %11#1, %11#2, %arg3, %arg4) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "epsilon" = 0.001 : f32}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<2x2x4x6xf32>, tensor<6xf32>, tensor<6xf32>)
    %25 = stablehlo.compare GT, %8, %10 : (tensor<2x2x4x6xf32>, tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xi1>
    %26 = stablehlo.select %25, %24#0, %10 : tensor<2x2x4x6xi1>, tensor<2x2x4x6xf32>
    %27 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%26, %arg6) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x2x4x6xf32>, tensor<1x1x6x6xf32>) -> (tensor<2x2x4x6xf32>)
    %28 = stablehlo.add %23#3, %27 : tensor<2x2x4x6xf32>
    %29 = stablehlo.convert %28 : (tensor<2x2x4x6xf32>) -> tensor<2x2x4x6xbf16>
    %30 = stablehlo.convert %29 : (tensor<2x2x4x6xbf16>) -> tensor<2x2x4x6xf32>
    %31 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%5#1, %30) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 1>, "padding_low" = array<i64: 1, 0>, "strides" = array<i64: 2, 1>, "window" = array<i64: 3, 2>}, has_side_effect = false} : (tensor<2x2x4x6xui8>, tensor<2x2x4x6xf32>) -> (tensor<2x4x4x6xf32>)
    %32 = stablehlo.convert %31 : (tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xbf16>
    %33 = stablehlo.convert %32 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %34 = stablehlo.convert %arg1 : (tensor<3x3x2x6xbf16>) -> tensor<3x3x2x6xf32>
    %35 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%33, %34) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>, tensor<3x3x2x6xf32>) -> (tensor<2x9x9x4xf32>)
    %36 = stablehlo.convert %35 : (tensor<2x9x9x4xf32>) -> tensor<2x9x9x4xbf16>
    %37 = stablehlo.convert %arg0 : (tensor<2x9x9x4xbf16>) -> tensor<2x9x9x4xf32>
    %38 = stablehlo.convert %32 : (tensor<2x4x4x6xbf16>) -> tensor<2x4x4x6xf32>
    %39 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%37, %38) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 2 : i64, "padding_high" = array<i64: 1, 1>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x9x9x4xf32>, tensor<2x4x4x6xf32>) -> (tensor<3x3x2x6xf32>)
    %40 = stablehlo.convert %39 : (tensor<3x3x2x6xf32>) -> tensor<3x3x2x6xbf16>
    return %17, %36, %40, %21 : tensor<f32>, tensor<2x9x9x4xbf16>, tensor<3x3x2x6xbf16>, tensor<3x6x2xf32>
  }
}

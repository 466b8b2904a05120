module @kernels attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x8x8x4xf32> loc("x"), %arg1: tensor<3x3x4x6xf32> loc("first"), %arg2: tensor<3x3x6x6xf32> loc("second"), %arg3: tensor<6xf32> loc("bias")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<3x3x4x6xf32> {jax.result_info = "first"}, tensor<3x3x6x6xf32> {jax.result_info = "second"}, tensor<6xf32> {jax.result_info = "bias"}) {
    %0 = stablehlo.custom_call @"phalanx.conv"(%arg0, %arg1, %arg3) {api_version = 4 : i32, backend_config = {"ceiling" = 0.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "relu" = true, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x8x8x4xf32>, tensor<3x3x4x6xf32>, tensor<6xf32>) -> (tensor<2x6x6x6xf32>)
    %1 = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.custom_call @"phalanx.conv"(%0, %arg2, %arg3) {api_version = 4 : i32, backend_config = {"ceiling" = 6.0 : f32, "dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "relu" = true, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x6x6x6xf32>, tensor<3x3x6x6xf32>, tensor<6xf32>) -> (tensor<2x4x4x6xf32>)
    %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<2x4x4x6xf32>
    %4 = stablehlo.constant dense<6.0> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<2x4x4x6xf32>
    %6:2 = stablehlo.custom_call @"phalanx.max_pool"(%2) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x4x4x6xf32>) -> (tensor<2x2x2x6xf32>, tensor<2x2x2x6xui8>)
    %7 = stablehlo.multiply %6#0, %6#0 : tensor<2x2x2x6xf32>
    %8 = stablehlo.constant dense<0.0> : tensor<f32>
    %9 = stablehlo.reduce(%7 init: %8) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<2x2x2x6xf32>, tensor<f32>) -> tensor<f32>
    %10 = stablehlo.add %6#0, %6#0 : tensor<2x2x2x6xf32>
    %11 = stablehlo.custom_call @"phalanx.max_pool_gradient"(%6#1, %10) {api_version = 4 : i32, backend_config = {"padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 2, 2>, "window" = array<i64: 2, 2>}, has_side_effect = false} : (tensor<2x2x2x6xui8>, tensor<2x2x2x6xf32>) -> (tensor<2x4x4x6xf32>)
    %12 = stablehlo.compare LT, %2, %5 : (tensor<2x4x4x6xf32>, tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xi1>
    %13 = stablehlo.select %12, %11, %3 : tensor<2x4x4x6xi1>, tensor<2x4x4x6xf32>
    %14 = stablehlo.compare GT, %2, %3 : (tensor<2x4x4x6xf32>, tensor<2x4x4x6xf32>) -> tensor<2x4x4x6xi1>
    %15 = stablehlo.select %14, %13, %3 : tensor<2x4x4x6xi1>, tensor<2x4x4x6xf32>
    %16 = stablehlo.constant dense<0.0> : tensor<f32>
    %17 = stablehlo.reduce(%15 init: %16) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x4x6xf32>, tensor<f32>) -> tensor<6xf32>
    %18 = stablehlo.custom_call @"phalanx.conv_input_gradient"(%15, %arg2, %0) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x4x4x6xf32>, tensor<3x3x6x6xf32>, tensor<2x6x6x6xf32>) -> (tensor<2x6x6x6xf32>)
    %19 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%0, %15) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x6x6x6xf32>, tensor<2x4x4x6xf32>) -> (tensor<3x3x6x6xf32>)
    %20 = stablehlo.constant dense<0.0> : tensor<f32>
    %21 = stablehlo.reduce(%18 init: %20) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x6x6x6xf32>, tensor<f32>) -> tensor<6xf32>
    %22 = stablehlo.add %17, %21 : tensor<6xf32>
    %23 = stablehlo.custom_call @"phalanx.conv_kernel_gradient"(%arg0, %18) {api_version = 4 : i32, backend_config = {"dilation" = array<i64: 1, 1>, "groups" = 1 : i64, "padding_high" = array<i64: 0, 0>, "padding_low" = array<i64: 0, 0>, "strides" = array<i64: 1, 1>}, has_side_effect = false} : (tensor<2x8x8x4xf32>, tensor<2x6x6x6xf32>) -> (tensor<3x3x4x6xf32>)
    return %9, %23, %19, %22 : tensor<f32>, tensor<3x3x4x6xf32>, tensor<3x3x6x6xf32>, tensor<6xf32>
  }
}

module @conv_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x7x6x4xf32> loc("x"), %arg1: tensor<3x3x2x6xf32> loc("conv/kernel")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x7x6x4xf32> {jax.result_info = "x"}, tensor<3x3x2x6xf32> {jax.result_info = "conv/kernel"}) {
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[1, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<2x7x6x4xf32>, tensor<3x3x2x6xf32>) -> tensor<2x4x3x6xf32> loc("conv")
    %1 = stablehlo.multiply %0, %0 : tensor<2x4x3x6xf32>
    %2 = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<2x4x3x6xf32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.add %0, %0 : tensor<2x4x3x6xf32>
    %5 = stablehlo.reshape %arg1 : (tensor<3x3x2x6xf32>) -> tensor<3x3x2x2x3xf32> loc("conv")
    %6 = stablehlo.transpose %5, dims = [0, 1, 3, 2, 4] : (tensor<3x3x2x2x3xf32>) -> tensor<3x3x2x2x3xf32> loc("conv")
    %7 = stablehlo.reshape %6 : (tensor<3x3x2x2x3xf32>) -> tensor<3x3x4x3xf32> loc("conv")
    %8 = stablehlo.reverse %7, dims = [0, 1] : tensor<3x3x4x3xf32> loc("conv")
    %9 = stablehlo.convolution(%4, %8) dim_numbers = [b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [2, 1]], lhs_dilate = [2, 2], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<2x4x3x6xf32>, tensor<3x3x4x3xf32>) -> tensor<2x7x6x4xf32> loc("conv")
    %10 = stablehlo.convolution(%arg0, %4) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [2, 2]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : (tensor<2x7x6x4xf32>, tensor<2x4x3x6xf32>) -> tensor<3x3x2x6xf32> loc("conv")
    return %3, %9, %10 : tensor<f32>, tensor<2x7x6x4xf32>, tensor<3x3x2x6xf32>
  }
}

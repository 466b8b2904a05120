module @pointwise_conv_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x4x4x3xf32> loc("x"), %arg1: tensor<1x1x3x5xf32> loc("conv/kernel")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x4x4x3xf32> {jax.result_info = "x"}, tensor<1x1x3x5xf32> {jax.result_info = "conv/kernel"}) {
    %0 = stablehlo.slice %arg0 [0:2, 0:3:2, 0:4, 0:3] : (tensor<2x4x4x3xf32>) -> tensor<2x2x4x3xf32> loc("conv")
    %1 = stablehlo.reshape %arg1 : (tensor<1x1x3x5xf32>) -> tensor<3x5xf32> loc("conv")
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [3] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x3xf32>, tensor<3x5xf32>) -> tensor<2x2x4x5xf32> loc("conv")
    %3 = stablehlo.multiply %2, %2 : tensor<2x2x4x5xf32>
    %4 = stablehlo.constant dense<0.0> : tensor<f32>
    %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<2x2x4x5xf32>, tensor<f32>) -> tensor<f32>
    %6 = stablehlo.add %2, %2 : tensor<2x2x4x5xf32>
    %7 = stablehlo.reshape %arg1 : (tensor<1x1x3x5xf32>) -> tensor<3x5xf32> loc("conv")
    %8 = stablehlo.dot_general %6, %7, contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x5xf32>, tensor<3x5xf32>) -> tensor<2x2x4x3xf32> loc("conv")
    %9 = stablehlo.constant dense<0.0> : tensor<f32> loc("conv")
    %10 = stablehlo.pad %8, %9, low = [0, 0, 0, 0], high = [0, 1, 0, 0], interior = [0, 1, 0, 0] : (tensor<2x2x4x3xf32>, tensor<f32>) -> tensor<2x4x4x3xf32> loc("conv")
    %11 = stablehlo.slice %arg0 [0:2, 0:3:2, 0:4, 0:3] : (tensor<2x4x4x3xf32>) -> tensor<2x2x4x3xf32> loc("conv")
    %12 = stablehlo.dot_general %11, %6, contracting_dims = [0, 1, 2] x [0, 1, 2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x3xf32>, tensor<2x2x4x5xf32>) -> tensor<3x5xf32> loc("conv")
    %13 = stablehlo.reshape %12 : (tensor<3x5xf32>) -> tensor<1x1x3x5xf32> loc("conv")
    return %5, %10, %13 : tensor<f32>, tensor<2x4x4x3xf32>, tensor<1x1x3x5xf32>
  }
}

module @elementwise_broadcast attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32} loc("x"), %arg1: tensor<3xf32> loc("bias"), %arg2: tensor<4x1xf32> loc("column")) -> (tensor<4x3xf32> {jax.result_info = "y"}, tensor<f32> {jax.result_info = "largest"}) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<4x3xf32> loc("shift")
    %1 = stablehlo.add %arg0, %0 : tensor<4x3xf32> loc("shift")
    %2 = stablehlo.constant dense<0.0> : tensor<f32> loc("shift")
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<4x3xf32> loc("shift")
    %4 = stablehlo.maximum %1, %3 : tensor<4x3xf32> loc("shift")
    %5 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x3xf32>
    %6 = stablehlo.multiply %4, %5 : tensor<4x3xf32>
    %7 = stablehlo.tanh %6 : tensor<4x3xf32>
    %8 = stablehlo.constant dense<0.5> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %10 = stablehlo.multiply %7, %9 : tensor<4x3xf32>
    %11 = stablehlo.compare GT, %arg0, %5 : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
    %12 = stablehlo.exponential %10 : tensor<4x3xf32>
    %13 = stablehlo.constant dense<1.0> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %15 = stablehlo.subtract %12, %14 : tensor<4x3xf32>
    %16 = stablehlo.select %11, %10, %15 : tensor<4x3xi1>, tensor<4x3xf32>
    %17 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    return %16, %18 : tensor<4x3xf32>, tensor<f32>
  }
}

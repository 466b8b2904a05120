module @dense_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x5xf32> loc("x"), %arg1: tensor<5x3xf32> loc("dense/kernel"), %arg2: tensor<3xf32> loc("dense/bias")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<5x3xf32> {jax.result_info = "dense/kernel"}, tensor<3xf32> {jax.result_info = "dense/bias"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xf32>, tensor<5x3xf32>) -> tensor<8x3xf32> loc("dense")
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("dense")
    %2 = stablehlo.add %0, %1 : tensor<8x3xf32> loc("dense")
    %3 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<8x3xf32> loc("dense")
    %5 = stablehlo.maximum %2, %4 : tensor<8x3xf32> loc("dense")
    %6 = stablehlo.multiply %5, %5 : tensor<8x3xf32>
    %7 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.reduce(%6 init: %7) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x3xf32>, tensor<f32>) -> tensor<f32>
    %9 = stablehlo.constant dense<24.0> : tensor<f32>
    %10 = stablehlo.divide %8, %9 : tensor<f32>
    %11 = stablehlo.constant dense<0.041666668> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
    %13 = stablehlo.multiply %12, %5 : tensor<8x3xf32>
    %14 = stablehlo.add %13, %13 : tensor<8x3xf32>
    %15 = stablehlo.compare GT, %2, %4 : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xi1> loc("dense")
    %16 = stablehlo.select %15, %14, %4 : tensor<8x3xi1>, tensor<8x3xf32> loc("dense")
    %17 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("dense")
    %19 = stablehlo.dot_general %arg0, %16, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xf32>, tensor<8x3xf32>) -> tensor<5x3xf32> loc("dense")
    return %10, %19, %18 : tensor<f32>, tensor<5x3xf32>, tensor<3xf32>
  }
}

module @mixed_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x5xf32> loc("x"), %arg1: tensor<5x3xf32> loc("dense/kernel")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<5x3xf32> {jax.result_info = "dense/kernel"}) {
    %0 = stablehlo.convert %arg0 : (tensor<8x5xf32>) -> tensor<8x5xbf16> loc("dense")
    %1 = stablehlo.convert %arg1 : (tensor<5x3xf32>) -> tensor<5x3xbf16> loc("dense")
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xbf16>, tensor<5x3xbf16>) -> tensor<8x3xbf16> loc("dense")
    %3 = stablehlo.logistic %2 : tensor<8x3xbf16> loc("dense")
    %4 = stablehlo.convert %3 : (tensor<8x3xbf16>) -> tensor<8x3xf32>
    %5 = stablehlo.multiply %4, %4 : tensor<8x3xf32>
    %6 = stablehlo.constant dense<0.0> : tensor<f32>
    %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x3xf32>, tensor<f32>) -> tensor<f32>
    %8 = stablehlo.constant dense<24.0> : tensor<f32>
    %9 = stablehlo.divide %7, %8 : tensor<f32>
    %10 = stablehlo.convert %3 : (tensor<8x3xbf16>) -> tensor<8x3xf32>
    %11 = stablehlo.constant dense<0.0> : tensor<f32>
    %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32>
    %13 = stablehlo.convert %12 : (tensor<3xf32>) -> tensor<3xbf16>
    %14 = stablehlo.convert %13 : (tensor<3xbf16>) -> tensor<3xf32>
    %15 = stablehlo.constant dense<0.0> : tensor<f32>
    %16 = stablehlo.reduce(%14 init: %15) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
    %17 = stablehlo.add %9, %16 : tensor<f32>
    %18 = stablehlo.constant dense<1.0> : tensor<bf16>
    %19 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<bf16>) -> tensor<8x3xbf16>
    %20 = stablehlo.constant dense<0.041666668> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %20, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
    %22 = stablehlo.multiply %21, %4 : tensor<8x3xf32>
    %23 = stablehlo.add %22, %22 : tensor<8x3xf32>
    %24 = stablehlo.convert %23 : (tensor<8x3xf32>) -> tensor<8x3xbf16>
    %25 = stablehlo.add %19, %24 : tensor<8x3xbf16>
    %26 = stablehlo.subtract %19, %3 : tensor<8x3xbf16> loc("dense")
    %27 = stablehlo.multiply %3, %26 : tensor<8x3xbf16> loc("dense")
    %28 = stablehlo.multiply %25, %27 : tensor<8x3xbf16> loc("dense")
    %29 = stablehlo.dot_general %0, %28, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xbf16>, tensor<8x3xbf16>) -> tensor<5x3xbf16> loc("dense")
    %30 = stablehlo.convert %29 : (tensor<5x3xbf16>) -> tensor<5x3xf32> loc("dense")
    return %17, %30 : tensor<f32>, tensor<5x3xf32>
  }
}

module @mixed_bf16 attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x5xf32> loc("x"), %arg1: tensor<5x3xf32> loc("dense/kernel")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<5x3xf32> {jax.result_info = "dense/kernel"}) {
    %0 = stablehlo.convert %arg0 : (tensor<8x5xf32>) -> tensor<8x5xbf16> loc("dense")
    %1 = stablehlo.convert %arg1 : (tensor<5x3xf32>) -> tensor<5x3xbf16> loc("dense")
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xbf16>, tensor<5x3xbf16>) -> tensor<8x3xf32> loc("dense")
    %3 = stablehlo.convert %2 : (tensor<8x3xf32>) -> tensor<8x3xbf16> loc("dense")
    %4 = stablehlo.logistic %3 : tensor<8x3xbf16> loc("dense")
    %5 = stablehlo.convert %4 : (tensor<8x3xbf16>) -> tensor<8x3xf32>
    %6 = stablehlo.multiply %5, %5 : tensor<8x3xf32>
    %7 = stablehlo.constant dense<0.0> : tensor<f32>
    %8 = stablehlo.reduce(%6 init: %7) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x3xf32>, tensor<f32>) -> tensor<f32>
    %9 = stablehlo.constant dense<24.0> : tensor<f32>
    %10 = stablehlo.divide %8, %9 : tensor<f32>
    %11 = stablehlo.convert %4 : (tensor<8x3xbf16>) -> tensor<8x3xf32>
    %12 = stablehlo.constant dense<0.0> : tensor<f32>
    %13 = stablehlo.reduce(%11 init: %12) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32>
    %14 = stablehlo.convert %13 : (tensor<3xf32>) -> tensor<3xbf16>
    %15 = stablehlo.convert %14 : (tensor<3xbf16>) -> tensor<3xf32>
    %16 = stablehlo.constant dense<0.0> : tensor<f32>
    %17 = stablehlo.reduce(%15 init: %16) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
    %18 = stablehlo.add %10, %17 : tensor<f32>
    %19 = stablehlo.constant dense<1.0> : tensor<bf16>
    %20 = stablehlo.broadcast_in_dim %19, dims = [] : (tensor<bf16>) -> tensor<8x3xbf16>
    %21 = stablehlo.constant dense<0.041666668> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
    %23 = stablehlo.multiply %22, %5 : tensor<8x3xf32>
    %24 = stablehlo.add %23, %23 : tensor<8x3xf32>
    %25 = stablehlo.convert %24 : (tensor<8x3xf32>) -> tensor<8x3xbf16>
    %26 = stablehlo.add %20, %25 : tensor<8x3xbf16>
    %27 = stablehlo.subtract %20, %4 : tensor<8x3xbf16> loc("dense")
    %28 = stablehlo.multiply %4, %27 : tensor<8x3xbf16> loc("dense")
    %29 = stablehlo.multiply %26, %28 : tensor<8x3xbf16> loc("dense")
    %30 = stablehlo.dot_general %0, %29, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x5xbf16>, tensor<8x3xbf16>) -> tensor<5x3xf32> loc("dense")
    %31 = stablehlo.convert %30 : (tensor<5x3xf32>) -> tensor<5x3xbf16> loc("dense")
    %32 = stablehlo.convert %31 : (tensor<5x3xbf16>) -> tensor<5x3xf32> loc("dense")
    return %18, %32 : tensor<f32>, tensor<5x3xf32>
  }
}

module @softmax_cross_entropy attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x10xf32> loc("logits"), %arg1: tensor<8xi32> loc("labels"), %arg2: tensor<8xf32> loc("weight")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<8x10xf32> {jax.result_info = "logits"}) {
    %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.maximum across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %3 = stablehlo.subtract %arg0, %2 : tensor<8x10xf32>
    %4 = stablehlo.exponential %3 : tensor<8x10xf32>
    %5 = stablehlo.constant dense<0.0> : tensor<f32>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %7 = stablehlo.log %6 : tensor<8xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %9 = stablehlo.subtract %3, %8 : tensor<8x10xf32>
    %10 = stablehlo.iota dim = 1 : tensor<8x10xi32>
    %11 = stablehlo.broadcast_in_dim %arg1, dims = [0] : (tensor<8xi32>) -> tensor<8x10xi32>
    %12 = stablehlo.compare EQ, %11, %10 : (tensor<8x10xi32>, tensor<8x10xi32>) -> tensor<8x10xi1>
    %13 = stablehlo.convert %12 : (tensor<8x10xi1>) -> tensor<8x10xf32>
    %14 = stablehlo.multiply %9, %13 : tensor<8x10xf32>
    %15 = stablehlo.constant dense<0.0> : tensor<f32>
    %16 = stablehlo.reduce(%14 init: %15) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %17 = stablehlo.negate %16 : tensor<8xf32>
    %18 = stablehlo.multiply %17, %arg2 : tensor<8xf32>
    %19 = stablehlo.constant dense<0.0> : tensor<f32>
    %20 = stablehlo.reduce(%18 init: %19) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %21 = stablehlo.constant dense<0.0> : tensor<f32>
    %22 = stablehlo.reduce(%arg2 init: %21) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %23 = stablehlo.divide %20, %22 : tensor<f32>
    %24 = stablehlo.constant dense<1.0> : tensor<f32>
    %25 = stablehlo.divide %24, %22 : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %27 = stablehlo.multiply %26, %arg2 : tensor<8xf32>
    %28 = stablehlo.negate %27 : tensor<8xf32>
    %29 = stablehlo.broadcast_in_dim %28, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %30 = stablehlo.multiply %29, %13 : tensor<8x10xf32>
    %31 = stablehlo.negate %30 : tensor<8x10xf32>
    %32 = stablehlo.constant dense<0.0> : tensor<f32>
    %33 = stablehlo.reduce(%31 init: %32) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %34 = stablehlo.divide %33, %6 : tensor<8xf32>
    %35 = stablehlo.broadcast_in_dim %34, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %36 = stablehlo.multiply %35, %4 : tensor<8x10xf32>
    %37 = stablehlo.add %30, %36 : tensor<8x10xf32>
    return %23, %37 : tensor<f32>, tensor<8x10xf32>
  }
}

module @softmax_cross_entropy attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x10xf32> loc("logits"), %arg1: tensor<8xi32> loc("labels"), %arg2: tensor<8xf32> loc("weight")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<8x10xf32> {jax.result_info = "logits"}) {
    %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.maximum across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %2 = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<8x1xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x10xf32>
    %4 = stablehlo.subtract %arg0, %3 : tensor<8x10xf32>
    %5 = stablehlo.exponential %4 : tensor<8x10xf32>
    %6 = stablehlo.constant dense<0.0> : tensor<f32>
    %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %8 = stablehlo.log %7 : tensor<8xf32>
    %9 = stablehlo.reshape %8 : (tensor<8xf32>) -> tensor<8x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x10xf32>
    %11 = stablehlo.subtract %4, %10 : tensor<8x10xf32>
    %12 = stablehlo.iota dim = 1 : tensor<8x10xi32>
    %13 = stablehlo.broadcast_in_dim %arg1, dims = [0] : (tensor<8xi32>) -> tensor<8x10xi32>
    %14 = stablehlo.compare EQ, %13, %12 : (tensor<8x10xi32>, tensor<8x10xi32>) -> tensor<8x10xi1>
    %15 = stablehlo.convert %14 : (tensor<8x10xi1>) -> tensor<8x10xf32>
    %16 = stablehlo.multiply %11, %15 : tensor<8x10xf32>
    %17 = stablehlo.constant dense<0.0> : tensor<f32>
    %18 = stablehlo.reduce(%16 init: %17) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %19 = stablehlo.negate %18 : tensor<8xf32>
    %20 = stablehlo.multiply %19, %arg2 : tensor<8xf32>
    %21 = stablehlo.constant dense<0.0> : tensor<f32>
    %22 = stablehlo.reduce(%20 init: %21) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %23 = stablehlo.constant dense<0.0> : tensor<f32>
    %24 = stablehlo.reduce(%arg2 init: %23) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %25 = stablehlo.divide %22, %24 : tensor<f32>
    %26 = stablehlo.constant dense<1.0> : tensor<f32>
    %27 = stablehlo.divide %26, %24 : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %29 = stablehlo.multiply %28, %arg2 : tensor<8xf32>
    %30 = stablehlo.negate %29 : tensor<8xf32>
    %31 = stablehlo.broadcast_in_dim %30, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %32 = stablehlo.multiply %31, %15 : tensor<8x10xf32>
    %33 = stablehlo.negate %32 : tensor<8x10xf32>
    %34 = stablehlo.constant dense<0.0> : tensor<f32>
    %35 = stablehlo.reduce(%33 init: %34) applies stablehlo.add across dimensions = [1] : (tensor<8x10xf32>, tensor<f32>) -> tensor<8xf32>
    %36 = stablehlo.divide %35, %7 : tensor<8xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0] : (tensor<8xf32>) -> tensor<8x10xf32>
    %38 = stablehlo.multiply %37, %5 : tensor<8x10xf32>
    %39 = stablehlo.add %32, %38 : tensor<8x10xf32>
    return %25, %39 : tensor<f32>, tensor<8x10xf32>
  }
}

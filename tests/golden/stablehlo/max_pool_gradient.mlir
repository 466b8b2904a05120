module @max_pool_gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x5x5x3xf32> loc("x")) -> (tensor<f32> {jax.result_info = "loss"}, tensor<2x5x5x3xf32> {jax.result_info = "x"}) {
    %0 = stablehlo.constant dense<0xFF800000> : tensor<f32> loc("pool")
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{padding = dense<[[0, 0], [0, 0], [0, 0], [0, 0]]> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%2: tensor<f32>, %3: tensor<f32>):
      %4 = stablehlo.maximum %2, %3 : tensor<f32> loc("pool")
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<2x5x5x3xf32>, tensor<f32>) -> tensor<2x2x2x3xf32> loc("pool")
    %5 = stablehlo.multiply %1, %1 : tensor<2x2x2x3xf32>
    %6 = stablehlo.constant dense<0.0> : tensor<f32>
    %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<f32>
    %8 = stablehlo.add %1, %1 : tensor<2x2x2x3xf32>
    %9 = stablehlo.constant dense<0.0> : tensor<f32> loc("pool")
    %10 = stablehlo.slice %arg0 [0:2, 0:3:2, 0:3:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %11 = stablehlo.compare EQ, %10, %1 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %12 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<2x2x2x3xf32> loc("pool")
    %13 = stablehlo.select %11, %8, %12 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %14 = stablehlo.pad %13, %9, low = [0, 0, 0, 0], high = [0, 2, 2, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %15 = stablehlo.slice %arg0 [0:2, 0:3:2, 1:4:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %16 = stablehlo.compare EQ, %15, %1 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %17 = stablehlo.not %11 : tensor<2x2x2x3xi1> loc("pool")
    %18 = stablehlo.and %16, %17 : tensor<2x2x2x3xi1> loc("pool")
    %19 = stablehlo.select %18, %8, %12 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %20 = stablehlo.pad %19, %9, low = [0, 0, 1, 0], high = [0, 2, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %21 = stablehlo.add %14, %20 : tensor<2x5x5x3xf32> loc("pool")
    %22 = stablehlo.or %11, %16 : tensor<2x2x2x3xi1> loc("pool")
    %23 = stablehlo.slice %arg0 [0:2, 1:4:2, 0:3:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %24 = stablehlo.compare EQ, %23, %1 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %25 = stablehlo.not %22 : tensor<2x2x2x3xi1> loc("pool")
    %26 = stablehlo.and %24, %25 : tensor<2x2x2x3xi1> loc("pool")
    %27 = stablehlo.select %26, %8, %12 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %28 = stablehlo.pad %27, %9, low = [0, 1, 0, 0], high = [0, 1, 2, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %29 = stablehlo.add %21, %28 : tensor<2x5x5x3xf32> loc("pool")
    %30 = stablehlo.or %22, %24 : tensor<2x2x2x3xi1> loc("pool")
    %31 = stablehlo.slice %arg0 [0:2, 1:4:2, 1:4:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %32 = stablehlo.compare EQ, %31, %1 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %33 = stablehlo.not %30 : tensor<2x2x2x3xi1> loc("pool")
    %34 = stablehlo.and %32, %33 : tensor<2x2x2x3xi1> loc("pool")
    %35 = stablehlo.select %34, %8, %12 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %36 = stablehlo.pad %35, %9, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %37 = stablehlo.add %29, %36 : tensor<2x5x5x3xf32> loc("pool")
    return %7, %37 : tensor<f32>, tensor<2x5x5x3xf32>
  }
}

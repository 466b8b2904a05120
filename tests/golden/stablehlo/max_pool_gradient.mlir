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
    %9 = stablehlo.slice %arg0 [0:2, 0:3:2, 0:3:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %10 = stablehlo.constant dense<0> : tensor<ui8> loc("pool")
    %11 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<ui8>) -> tensor<2x2x2x3xui8> loc("pool")
    %12 = stablehlo.slice %arg0 [0:2, 0:3:2, 1:4:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %13 = stablehlo.compare LE, %12, %9 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %14 = stablehlo.not %13 : tensor<2x2x2x3xi1> loc("pool")
    %15 = stablehlo.compare EQ, %9, %9 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %16 = stablehlo.and %14, %15 : tensor<2x2x2x3xi1> loc("pool")
    %17 = stablehlo.constant dense<1> : tensor<ui8> loc("pool")
    %18 = stablehlo.broadcast_in_dim %17, dims = [] : (tensor<ui8>) -> tensor<2x2x2x3xui8> loc("pool")
    %19 = stablehlo.select %16, %18, %11 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xui8> loc("pool")
    %20 = stablehlo.select %16, %12, %9 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %21 = stablehlo.slice %arg0 [0:2, 1:4:2, 0:3:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %22 = stablehlo.compare LE, %21, %20 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %23 = stablehlo.not %22 : tensor<2x2x2x3xi1> loc("pool")
    %24 = stablehlo.compare EQ, %20, %20 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %25 = stablehlo.and %23, %24 : tensor<2x2x2x3xi1> loc("pool")
    %26 = stablehlo.constant dense<2> : tensor<ui8> loc("pool")
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<ui8>) -> tensor<2x2x2x3xui8> loc("pool")
    %28 = stablehlo.select %25, %27, %19 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xui8> loc("pool")
    %29 = stablehlo.select %25, %21, %20 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %30 = stablehlo.slice %arg0 [0:2, 1:4:2, 1:4:2, 0:3] : (tensor<2x5x5x3xf32>) -> tensor<2x2x2x3xf32> loc("pool")
    %31 = stablehlo.compare LE, %30, %29 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %32 = stablehlo.not %31 : tensor<2x2x2x3xi1> loc("pool")
    %33 = stablehlo.compare EQ, %29, %29 : (tensor<2x2x2x3xf32>, tensor<2x2x2x3xf32>) -> tensor<2x2x2x3xi1> loc("pool")
    %34 = stablehlo.and %32, %33 : tensor<2x2x2x3xi1> loc("pool")
    %35 = stablehlo.constant dense<3> : tensor<ui8> loc("pool")
    %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<ui8>) -> tensor<2x2x2x3xui8> loc("pool")
    %37 = stablehlo.select %34, %36, %28 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xui8> loc("pool")
    %38 = stablehlo.optimization_barrier %37 : tensor<2x2x2x3xui8> loc("pool")
    %39 = stablehlo.constant dense<0.0> : tensor<f32> loc("pool")
    %40 = stablehlo.compare EQ, %38, %11 : (tensor<2x2x2x3xui8>, tensor<2x2x2x3xui8>) -> tensor<2x2x2x3xi1> loc("pool")
    %41 = stablehlo.broadcast_in_dim %39, dims = [] : (tensor<f32>) -> tensor<2x2x2x3xf32> loc("pool")
    %42 = stablehlo.select %40, %8, %41 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %43 = stablehlo.pad %42, %39, low = [0, 0, 0, 0], high = [0, 2, 2, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %44 = stablehlo.compare EQ, %38, %18 : (tensor<2x2x2x3xui8>, tensor<2x2x2x3xui8>) -> tensor<2x2x2x3xi1> loc("pool")
    %45 = stablehlo.select %44, %8, %41 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %46 = stablehlo.pad %45, %39, low = [0, 0, 1, 0], high = [0, 2, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %47 = stablehlo.add %43, %46 : tensor<2x5x5x3xf32> loc("pool")
    %48 = stablehlo.compare EQ, %38, %27 : (tensor<2x2x2x3xui8>, tensor<2x2x2x3xui8>) -> tensor<2x2x2x3xi1> loc("pool")
    %49 = stablehlo.select %48, %8, %41 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %50 = stablehlo.pad %49, %39, low = [0, 1, 0, 0], high = [0, 1, 2, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %51 = stablehlo.add %47, %50 : tensor<2x5x5x3xf32> loc("pool")
    %52 = stablehlo.compare EQ, %38, %36 : (tensor<2x2x2x3xui8>, tensor<2x2x2x3xui8>) -> tensor<2x2x2x3xi1> loc("pool")
    %53 = stablehlo.select %52, %8, %41 : tensor<2x2x2x3xi1>, tensor<2x2x2x3xf32> loc("pool")
    %54 = stablehlo.pad %53, %39, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x2x2x3xf32>, tensor<f32>) -> tensor<2x5x5x3xf32> loc("pool")
    %55 = stablehlo.add %51, %54 : tensor<2x5x5x3xf32> loc("pool")
    return %7, %55 : tensor<f32>, tensor<2x5x5x3xf32>
  }
}

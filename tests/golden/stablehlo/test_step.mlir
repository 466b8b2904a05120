module @test_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> loc("dense/kernel"), %arg1: tensor<3xf32> loc("dense/bias"), %arg2: tensor<3xf32> loc("batch_norm/gamma"), %arg3: tensor<3xf32> loc("batch_norm/beta"), %arg4: tensor<3xf32> loc("batch_norm/moving_mean"), %arg5: tensor<3xf32> loc("batch_norm/moving_variance"), %arg6: tensor<3x2xf32> loc("class/kernel"), %arg7: tensor<2xf32> loc("class/bias"), %arg8: tensor<7xf64> {tf.aliasing_output = 0 : i32} loc("tally"), %arg9: tensor<8x4xf32> loc("x"), %arg10: tensor<8xi32> loc("y"), %arg11: tensor<8xf32> loc("weight")) -> (tensor<7xf64> {jax.result_info = "tally"}) {
    %0 = stablehlo.multiply %arg0, %arg0 : tensor<4x3xf32> loc("dense")
    %1 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32> loc("dense")
    %3 = stablehlo.constant dense<0.01> : tensor<f32> loc("dense")
    %4 = stablehlo.multiply %2, %3 : tensor<f32> loc("dense")
    %5 = stablehlo.dot_general %arg9, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32> loc("dense")
    %6 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("dense")
    %7 = stablehlo.add %5, %6 : tensor<8x3xf32> loc("dense")
    %8 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<8x3xf32> loc("dense")
    %10 = stablehlo.maximum %7, %9 : tensor<8x3xf32> loc("dense")
    %11 = stablehlo.constant dense<0.001> : tensor<f32> loc("batch_norm")
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %13 = stablehlo.add %arg5, %12 : tensor<3xf32> loc("batch_norm")
    %14 = stablehlo.rsqrt %13 : tensor<3xf32> loc("batch_norm")
    %15 = stablehlo.multiply %14, %arg2 : tensor<3xf32> loc("batch_norm")
    %16 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %17 = stablehlo.subtract %10, %16 : tensor<8x3xf32> loc("batch_norm")
    %18 = stablehlo.broadcast_in_dim %15, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %19 = stablehlo.multiply %17, %18 : tensor<8x3xf32> loc("batch_norm")
    %20 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %21 = stablehlo.add %19, %20 : tensor<8x3xf32> loc("batch_norm")
    %22 = stablehlo.dot_general %21, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32> loc("class")
    %23 = stablehlo.broadcast_in_dim %arg7, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32> loc("class")
    %24 = stablehlo.add %22, %23 : tensor<8x2xf32> loc("class")
    %25 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %26 = stablehlo.reduce(%24 init: %25) applies stablehlo.maximum across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %28 = stablehlo.subtract %24, %27 : tensor<8x2xf32>
    %29 = stablehlo.iota dim = 1 : tensor<8x2xi32>
    %30 = stablehlo.broadcast_in_dim %arg10, dims = [0] : (tensor<8xi32>) -> tensor<8x2xi32>
    %31 = stablehlo.compare EQ, %30, %29 : (tensor<8x2xi32>, tensor<8x2xi32>) -> tensor<8x2xi1>
    %32 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
    %33 = stablehlo.select %31, %28, %32 : tensor<8x2xi1>, tensor<8x2xf32>
    %34 = stablehlo.constant dense<0.0> : tensor<f32>
    %35 = stablehlo.reduce(%33 init: %34) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %36 = stablehlo.exponential %28 : tensor<8x2xf32>
    %37 = stablehlo.constant dense<0.0> : tensor<f32>
    %38 = stablehlo.reduce(%36 init: %37) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %39 = stablehlo.log %38 : tensor<8xf32>
    %40 = stablehlo.subtract %39, %35 : tensor<8xf32>
    %41 = stablehlo.constant dense<0> : tensor<i32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %43 = stablehlo.compare GE, %arg10, %42 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %44 = stablehlo.constant dense<2> : tensor<i32>
    %45 = stablehlo.broadcast_in_dim %44, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %46 = stablehlo.compare LT, %arg10, %45 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %47 = stablehlo.and %43, %46 : tensor<8xi1>
    %48 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %48, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %50 = stablehlo.select %47, %40, %49 : tensor<8xi1>, tensor<8xf32>
    %51 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %52 = stablehlo.compare NE, %arg11, %51 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %53 = stablehlo.multiply %50, %arg11 : tensor<8xf32>
    %54 = stablehlo.select %52, %53, %51 : tensor<8xi1>, tensor<8xf32>
    %55 = stablehlo.constant dense<0.0> : tensor<f32>
    %56 = stablehlo.reduce(%54 init: %55) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %57 = stablehlo.constant dense<0.0> : tensor<f32>
    %58 = stablehlo.reduce(%arg11 init: %57) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %59 = stablehlo.convert %4 : (tensor<f32>) -> tensor<f64>
    %60 = stablehlo.constant dense<8.0> : tensor<f64>
    %61 = stablehlo.multiply %59, %60 : tensor<f64>
    %62 = stablehlo.optimization_barrier %24 : tensor<8x2xf32>
    %63 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %64 = stablehlo.reduce(%62 init: %63) applies stablehlo.maximum across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %65 = stablehlo.broadcast_in_dim %64, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %66 = stablehlo.compare LT, %62, %65 : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xi1>
    %67 = stablehlo.broadcast_in_dim %44, dims = [] : (tensor<i32>) -> tensor<8x2xi32>
    %68 = stablehlo.select %66, %67, %29 : tensor<8x2xi1>, tensor<8x2xi32>
    %69 = stablehlo.constant dense<2147483647> : tensor<i32>
    %70 = stablehlo.reduce(%68 init: %69) applies stablehlo.minimum across dimensions = [1] : (tensor<8x2xi32>, tensor<i32>) -> tensor<8xi32>
    %71 = stablehlo.compare EQ, %arg10, %70 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %72 = stablehlo.convert %71 : (tensor<8xi1>) -> tensor<8xf32>
    %73 = stablehlo.constant dense<0.0> : tensor<f32>
    %74 = stablehlo.reduce(%72 init: %73) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %75 = stablehlo.convert %56 : (tensor<f32>) -> tensor<f64>
    %76 = stablehlo.reshape %75 : (tensor<f64>) -> tensor<1xf64>
    %77 = stablehlo.convert %58 : (tensor<f32>) -> tensor<f64>
    %78 = stablehlo.reshape %77 : (tensor<f64>) -> tensor<1xf64>
    %79 = stablehlo.reshape %61 : (tensor<f64>) -> tensor<1xf64>
    %80 = stablehlo.broadcast_in_dim %60, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %81 = stablehlo.convert %74 : (tensor<f32>) -> tensor<f64>
    %82 = stablehlo.reshape %81 : (tensor<f64>) -> tensor<1xf64>
    %83 = stablehlo.constant dense<0.0> : tensor<f64>
    %84 = stablehlo.broadcast_in_dim %83, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %85 = stablehlo.concatenate %76, %78, %79, %80, %82, %80, %84, dim = 0 : (tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>) -> tensor<7xf64>
    %86 = stablehlo.add %arg8, %85 : tensor<7xf64>
    return %86 : tensor<7xf64>
  }
}

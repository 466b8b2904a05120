module @test_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> loc("dense/kernel"), %arg1: tensor<3xf32> loc("dense/bias"), %arg2: tensor<3xf32> loc("batch_norm/gamma"), %arg3: tensor<3xf32> loc("batch_norm/beta"), %arg4: tensor<3xf32> loc("batch_norm/moving_mean"), %arg5: tensor<3xf32> loc("batch_norm/moving_variance"), %arg6: tensor<3x2xf32> loc("class/kernel"), %arg7: tensor<2xf32> loc("class/bias"), %arg8: tensor<5xf64> {tf.aliasing_output = 0 : i32} loc("tally"), %arg9: tensor<i32> loc("rows"), %arg10: tensor<8x4xf32> loc("x"), %arg11: tensor<8xi32> loc("y"), %arg12: tensor<8xf32> loc("weight")) -> (tensor<5xf64> {jax.result_info = "tally"}) {
    %0 = stablehlo.iota dim = 0 : tensor<8xi32>
    %1 = stablehlo.broadcast_in_dim %arg9, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %2 = stablehlo.compare LT, %0, %1 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %3 = stablehlo.convert %2 : (tensor<8xi1>) -> tensor<8xf32>
    %4 = stablehlo.multiply %arg0, %arg0 : tensor<4x3xf32> loc("dense")
    %5 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32> loc("dense")
    %7 = stablehlo.constant dense<0.01> : tensor<f32> loc("dense")
    %8 = stablehlo.multiply %6, %7 : tensor<f32> loc("dense")
    %9 = stablehlo.dot_general %arg10, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32> loc("dense")
    %10 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("dense")
    %11 = stablehlo.add %9, %10 : tensor<8x3xf32> loc("dense")
    %12 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x3xf32> loc("dense")
    %14 = stablehlo.maximum %11, %13 : tensor<8x3xf32> loc("dense")
    %15 = stablehlo.constant dense<0.001> : tensor<f32> loc("batch_norm")
    %16 = stablehlo.broadcast_in_dim %15, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %17 = stablehlo.add %arg5, %16 : tensor<3xf32> loc("batch_norm")
    %18 = stablehlo.rsqrt %17 : tensor<3xf32> loc("batch_norm")
    %19 = stablehlo.multiply %18, %arg2 : tensor<3xf32> loc("batch_norm")
    %20 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %21 = stablehlo.subtract %14, %20 : tensor<8x3xf32> loc("batch_norm")
    %22 = stablehlo.broadcast_in_dim %19, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %23 = stablehlo.multiply %21, %22 : tensor<8x3xf32> loc("batch_norm")
    %24 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %25 = stablehlo.add %23, %24 : tensor<8x3xf32> loc("batch_norm")
    %26 = stablehlo.dot_general %25, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32> loc("class")
    %27 = stablehlo.broadcast_in_dim %arg7, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32> loc("class")
    %28 = stablehlo.add %26, %27 : tensor<8x2xf32> loc("class")
    %29 = stablehlo.multiply %arg12, %3 : tensor<8xf32>
    %30 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %31 = stablehlo.reduce(%28 init: %30) applies stablehlo.maximum across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %33 = stablehlo.subtract %28, %32 : tensor<8x2xf32>
    %34 = stablehlo.iota dim = 1 : tensor<8x2xi32>
    %35 = stablehlo.broadcast_in_dim %arg11, dims = [0] : (tensor<8xi32>) -> tensor<8x2xi32>
    %36 = stablehlo.compare EQ, %35, %34 : (tensor<8x2xi32>, tensor<8x2xi32>) -> tensor<8x2xi1>
    %37 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
    %38 = stablehlo.select %36, %33, %37 : tensor<8x2xi1>, tensor<8x2xf32>
    %39 = stablehlo.constant dense<0.0> : tensor<f32>
    %40 = stablehlo.reduce(%38 init: %39) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %41 = stablehlo.exponential %33 : tensor<8x2xf32>
    %42 = stablehlo.constant dense<0.0> : tensor<f32>
    %43 = stablehlo.reduce(%41 init: %42) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %44 = stablehlo.log %43 : tensor<8xf32>
    %45 = stablehlo.subtract %44, %40 : tensor<8xf32>
    %46 = stablehlo.constant dense<0> : tensor<i32>
    %47 = stablehlo.broadcast_in_dim %46, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %48 = stablehlo.compare GE, %arg11, %47 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %49 = stablehlo.constant dense<2> : tensor<i32>
    %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %51 = stablehlo.compare LT, %arg11, %50 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %52 = stablehlo.and %48, %51 : tensor<8xi1>
    %53 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %55 = stablehlo.select %52, %45, %54 : tensor<8xi1>, tensor<8xf32>
    %56 = stablehlo.constant dense<0.0> : tensor<f32>
    %57 = stablehlo.reduce(%29 init: %56) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %58 = stablehlo.multiply %55, %29 : tensor<8xf32>
    %59 = stablehlo.constant dense<0.0> : tensor<f32>
    %60 = stablehlo.reduce(%58 init: %59) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %61 = stablehlo.compare EQ, %57, %12 : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %62 = stablehlo.constant dense<1.0> : tensor<f32>
    %63 = stablehlo.select %61, %62, %57 : tensor<i1>, tensor<f32>
    %64 = stablehlo.divide %60, %63 : tensor<f32>
    %65 = stablehlo.add %12, %64 : tensor<f32>
    %66 = stablehlo.add %65, %8 : tensor<f32>
    %67 = stablehlo.compare LT, %28, %32 : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xi1>
    %68 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<i32>) -> tensor<8x2xi32>
    %69 = stablehlo.select %67, %68, %34 : tensor<8x2xi1>, tensor<8x2xi32>
    %70 = stablehlo.constant dense<2147483647> : tensor<i32>
    %71 = stablehlo.reduce(%69 init: %70) applies stablehlo.minimum across dimensions = [1] : (tensor<8x2xi32>, tensor<i32>) -> tensor<8xi32>
    %72 = stablehlo.compare EQ, %arg11, %71 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %73 = stablehlo.convert %72 : (tensor<8xi1>) -> tensor<8xf32>
    %74 = stablehlo.multiply %73, %3 : tensor<8xf32>
    %75 = stablehlo.constant dense<0.0> : tensor<f32>
    %76 = stablehlo.reduce(%74 init: %75) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %77 = stablehlo.constant dense<0.0> : tensor<f32>
    %78 = stablehlo.reduce(%3 init: %77) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %79 = stablehlo.convert %66 : (tensor<f32>) -> tensor<f64>
    %80 = stablehlo.convert %57 : (tensor<f32>) -> tensor<f64>
    %81 = stablehlo.multiply %79, %80 : tensor<f64>
    %82 = stablehlo.reshape %81 : (tensor<f64>) -> tensor<1xf64>
    %83 = stablehlo.reshape %80 : (tensor<f64>) -> tensor<1xf64>
    %84 = stablehlo.convert %76 : (tensor<f32>) -> tensor<f64>
    %85 = stablehlo.reshape %84 : (tensor<f64>) -> tensor<1xf64>
    %86 = stablehlo.convert %78 : (tensor<f32>) -> tensor<f64>
    %87 = stablehlo.reshape %86 : (tensor<f64>) -> tensor<1xf64>
    %88 = stablehlo.constant dense<0.0> : tensor<f64>
    %89 = stablehlo.broadcast_in_dim %88, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %90 = stablehlo.concatenate %82, %83, %85, %87, %89, dim = 0 : (tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>) -> tensor<5xf64>
    %91 = stablehlo.add %arg8, %90 : tensor<5xf64>
    return %91 : tensor<5xf64>
  }
}

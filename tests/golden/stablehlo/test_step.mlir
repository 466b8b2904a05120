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
    %56 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %57 = stablehlo.compare NE, %29, %56 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %58 = stablehlo.multiply %55, %29 : tensor<8xf32>
    %59 = stablehlo.select %57, %58, %56 : tensor<8xi1>, tensor<8xf32>
    %60 = stablehlo.constant dense<0.0> : tensor<f32>
    %61 = stablehlo.reduce(%59 init: %60) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %62 = stablehlo.constant dense<0.0> : tensor<f32>
    %63 = stablehlo.reduce(%29 init: %62) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %64 = stablehlo.compare EQ, %63, %12 : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %65 = stablehlo.constant dense<1.0> : tensor<f32>
    %66 = stablehlo.select %64, %65, %63 : tensor<i1>, tensor<f32>
    %67 = stablehlo.divide %61, %66 : tensor<f32>
    %68 = stablehlo.add %12, %67 : tensor<f32>
    %69 = stablehlo.add %68, %8 : tensor<f32>
    %70 = stablehlo.compare LT, %28, %32 : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xi1>
    %71 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<i32>) -> tensor<8x2xi32>
    %72 = stablehlo.select %70, %71, %34 : tensor<8x2xi1>, tensor<8x2xi32>
    %73 = stablehlo.constant dense<2147483647> : tensor<i32>
    %74 = stablehlo.reduce(%72 init: %73) applies stablehlo.minimum across dimensions = [1] : (tensor<8x2xi32>, tensor<i32>) -> tensor<8xi32>
    %75 = stablehlo.compare EQ, %arg11, %74 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %76 = stablehlo.convert %75 : (tensor<8xi1>) -> tensor<8xf32>
    %77 = stablehlo.multiply %76, %3 : tensor<8xf32>
    %78 = stablehlo.constant dense<0.0> : tensor<f32>
    %79 = stablehlo.reduce(%77 init: %78) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %80 = stablehlo.constant dense<0.0> : tensor<f32>
    %81 = stablehlo.reduce(%3 init: %80) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %82 = stablehlo.convert %69 : (tensor<f32>) -> tensor<f64>
    %83 = stablehlo.convert %63 : (tensor<f32>) -> tensor<f64>
    %84 = stablehlo.multiply %82, %83 : tensor<f64>
    %85 = stablehlo.reshape %84 : (tensor<f64>) -> tensor<1xf64>
    %86 = stablehlo.reshape %83 : (tensor<f64>) -> tensor<1xf64>
    %87 = stablehlo.convert %79 : (tensor<f32>) -> tensor<f64>
    %88 = stablehlo.reshape %87 : (tensor<f64>) -> tensor<1xf64>
    %89 = stablehlo.convert %81 : (tensor<f32>) -> tensor<f64>
    %90 = stablehlo.reshape %89 : (tensor<f64>) -> tensor<1xf64>
    %91 = stablehlo.constant dense<0.0> : tensor<f64>
    %92 = stablehlo.broadcast_in_dim %91, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %93 = stablehlo.concatenate %85, %86, %88, %90, %92, dim = 0 : (tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>) -> tensor<5xf64>
    %94 = stablehlo.add %arg8, %93 : tensor<5xf64>
    return %94 : tensor<5xf64>
  }
}

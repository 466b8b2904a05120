module @training_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32} loc("dense/kernel"), %arg1: tensor<3xf32> {tf.aliasing_output = 1 : i32} loc("dense/bias"), %arg2: tensor<3xf32> {tf.aliasing_output = 2 : i32} loc("batch_norm/gamma"), %arg3: tensor<3xf32> {tf.aliasing_output = 3 : i32} loc("batch_norm/beta"), %arg4: tensor<3xf32> {tf.aliasing_output = 4 : i32} loc("batch_norm/moving_mean"), %arg5: tensor<3xf32> {tf.aliasing_output = 5 : i32} loc("batch_norm/moving_variance"), %arg6: tensor<3x2xf32> {tf.aliasing_output = 6 : i32} loc("class/kernel"), %arg7: tensor<2xf32> {tf.aliasing_output = 7 : i32} loc("class/bias"), %arg8: tensor<f32> loc("learning_rate"), %arg9: tensor<4x3xf32> {tf.aliasing_output = 8 : i32} loc("dense/kernel/momentum"), %arg10: tensor<3xf32> {tf.aliasing_output = 9 : i32} loc("dense/bias/momentum"), %arg11: tensor<3xf32> {tf.aliasing_output = 10 : i32} loc("batch_norm/gamma/momentum"), %arg12: tensor<3xf32> {tf.aliasing_output = 11 : i32} loc("batch_norm/beta/momentum"), %arg13: tensor<3x2xf32> {tf.aliasing_output = 12 : i32} loc("class/kernel/momentum"), %arg14: tensor<2xf32> {tf.aliasing_output = 13 : i32} loc("class/bias/momentum"), %arg15: tensor<i64> {tf.aliasing_output = 14 : i32} loc("iterations"), %arg16: tensor<7xf64> {tf.aliasing_output = 15 : i32} loc("tally"), %arg17: tensor<2xui32> loc("seed"), %arg18: tensor<8x4xf32> loc("x"), %arg19: tensor<8xi32> loc("y"), %arg20: tensor<8xf32> loc("weight")) -> (tensor<4x3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3x2xf32> {jax.result_info = "state"}, tensor<2xf32> {jax.result_info = "state"}, tensor<4x3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3xf32> {jax.result_info = "state"}, tensor<3x2xf32> {jax.result_info = "state"}, tensor<2xf32> {jax.result_info = "state"}, tensor<i64> {jax.result_info = "state"}, tensor<7xf64> {jax.result_info = "tally"}) {
    %0 = stablehlo.convert %arg15 : (tensor<i64>) -> tensor<ui32>
    %1 = func.call @random_bits_1x2(%arg17, %0) : (tensor<2xui32>, tensor<ui32>) -> tensor<1x2xui32>
    %2 = stablehlo.reshape %1 : (tensor<1x2xui32>) -> tensor<2xui32>
    %3 = stablehlo.constant dense<0> : tensor<ui32>
    %4 = stablehlo.multiply %arg0, %arg0 : tensor<4x3xf32> loc("dense")
    %5 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32> loc("dense")
    %7 = stablehlo.constant dense<0.01> : tensor<f32> loc("dense")
    %8 = stablehlo.multiply %6, %7 : tensor<f32> loc("dense")
    %9 = stablehlo.dot_general %arg18, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32> loc("dense")
    %10 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("dense")
    %11 = stablehlo.add %9, %10 : tensor<8x3xf32> loc("dense")
    %12 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %13 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x3xf32> loc("dense")
    %14 = stablehlo.maximum %11, %13 : tensor<8x3xf32> loc("dense")
    %15 = stablehlo.constant dense<0.0> : tensor<f32> loc("batch_norm")
    %16 = stablehlo.reduce(%14 init: %15) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %17 = stablehlo.constant dense<8.0> : tensor<f32> loc("batch_norm")
    %18 = stablehlo.broadcast_in_dim %17, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %19 = stablehlo.divide %16, %18 : tensor<3xf32> loc("batch_norm")
    %20 = stablehlo.broadcast_in_dim %19, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %21 = stablehlo.subtract %14, %20 : tensor<8x3xf32> loc("batch_norm")
    %22 = stablehlo.multiply %21, %21 : tensor<8x3xf32> loc("batch_norm")
    %23 = stablehlo.constant dense<0.0> : tensor<f32> loc("batch_norm")
    %24 = stablehlo.reduce(%22 init: %23) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %25 = stablehlo.divide %24, %18 : tensor<3xf32> loc("batch_norm")
    %26 = stablehlo.constant dense<0.001> : tensor<f32> loc("batch_norm")
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %28 = stablehlo.add %25, %27 : tensor<3xf32> loc("batch_norm")
    %29 = stablehlo.rsqrt %28 : tensor<3xf32> loc("batch_norm")
    %30 = stablehlo.multiply %29, %arg2 : tensor<3xf32> loc("batch_norm")
    %31 = stablehlo.broadcast_in_dim %30, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %32 = stablehlo.multiply %21, %31 : tensor<8x3xf32> loc("batch_norm")
    %33 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %34 = stablehlo.add %32, %33 : tensor<8x3xf32> loc("batch_norm")
    %35 = stablehlo.constant dense<0.99> : tensor<f32> loc("batch_norm")
    %36 = stablehlo.broadcast_in_dim %35, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %37 = stablehlo.multiply %arg4, %36 : tensor<3xf32> loc("batch_norm")
    %38 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %39 = stablehlo.multiply %19, %38 : tensor<3xf32> loc("batch_norm")
    %40 = stablehlo.add %37, %39 : tensor<3xf32> loc("batch_norm")
    %41 = stablehlo.multiply %arg5, %36 : tensor<3xf32> loc("batch_norm")
    %42 = stablehlo.multiply %25, %38 : tensor<3xf32> loc("batch_norm")
    %43 = stablehlo.add %41, %42 : tensor<3xf32> loc("batch_norm")
    %44 = stablehlo.constant dense<[1241283436, 3260807270]> : tensor<2xui32> loc("dropout")
    %45 = stablehlo.xor %2, %44 : tensor<2xui32> loc("dropout")
    %46 = func.call @random_bits_8x3(%45, %3) : (tensor<2xui32>, tensor<ui32>) -> tensor<8x3xui32> loc("dropout")
    %47 = stablehlo.constant dense<2147483648> : tensor<ui32> loc("dropout")
    %48 = stablehlo.broadcast_in_dim %47, dims = [] : (tensor<ui32>) -> tensor<8x3xui32> loc("dropout")
    %49 = stablehlo.compare GE, %46, %48 : (tensor<8x3xui32>, tensor<8x3xui32>) -> tensor<8x3xi1> loc("dropout")
    %50 = stablehlo.constant dense<0.5> : tensor<f32> loc("dropout")
    %51 = stablehlo.broadcast_in_dim %50, dims = [] : (tensor<f32>) -> tensor<8x3xf32> loc("dropout")
    %52 = stablehlo.divide %34, %51 : tensor<8x3xf32> loc("dropout")
    %53 = stablehlo.select %49, %52, %13 : tensor<8x3xi1>, tensor<8x3xf32> loc("dropout")
    %54 = stablehlo.dot_general %53, %arg6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32> loc("class")
    %55 = stablehlo.broadcast_in_dim %arg7, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32> loc("class")
    %56 = stablehlo.add %54, %55 : tensor<8x2xf32> loc("class")
    %57 = stablehlo.reshape %arg20 : (tensor<8xf32>) -> tensor<8x1xf32>
    %58 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x1xf32>
    %59 = stablehlo.compare NE, %57, %58 : (tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x1xi1>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1] : (tensor<8x1xi1>) -> tensor<8x2xi1>
    %61 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %62 = stablehlo.reduce(%56 init: %61) applies stablehlo.maximum across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %63 = stablehlo.broadcast_in_dim %62, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %64 = stablehlo.subtract %56, %63 : tensor<8x2xf32>
    %65 = stablehlo.iota dim = 1 : tensor<8x2xi32>
    %66 = stablehlo.broadcast_in_dim %arg19, dims = [0] : (tensor<8xi32>) -> tensor<8x2xi32>
    %67 = stablehlo.compare EQ, %66, %65 : (tensor<8x2xi32>, tensor<8x2xi32>) -> tensor<8x2xi1>
    %68 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
    %69 = stablehlo.select %67, %64, %68 : tensor<8x2xi1>, tensor<8x2xf32>
    %70 = stablehlo.constant dense<0.0> : tensor<f32>
    %71 = stablehlo.reduce(%69 init: %70) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %72 = stablehlo.exponential %64 : tensor<8x2xf32>
    %73 = stablehlo.constant dense<0.0> : tensor<f32>
    %74 = stablehlo.reduce(%72 init: %73) applies stablehlo.add across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %75 = stablehlo.log %74 : tensor<8xf32>
    %76 = stablehlo.subtract %75, %71 : tensor<8xf32>
    %77 = stablehlo.constant dense<0> : tensor<i32>
    %78 = stablehlo.broadcast_in_dim %77, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %79 = stablehlo.compare GE, %arg19, %78 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %80 = stablehlo.constant dense<2> : tensor<i32>
    %81 = stablehlo.broadcast_in_dim %80, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %82 = stablehlo.compare LT, %arg19, %81 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %83 = stablehlo.and %79, %82 : tensor<8xi1>
    %84 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %85 = stablehlo.broadcast_in_dim %84, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %86 = stablehlo.select %83, %76, %85 : tensor<8xi1>, tensor<8xf32>
    %87 = stablehlo.broadcast_in_dim %12, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %88 = stablehlo.compare NE, %arg20, %87 : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xi1>
    %89 = stablehlo.multiply %86, %arg20 : tensor<8xf32>
    %90 = stablehlo.select %88, %89, %87 : tensor<8xi1>, tensor<8xf32>
    %91 = stablehlo.constant dense<0.0> : tensor<f32>
    %92 = stablehlo.reduce(%90 init: %91) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %93 = stablehlo.constant dense<0.0> : tensor<f32>
    %94 = stablehlo.reduce(%arg20 init: %93) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %95 = stablehlo.compare EQ, %94, %12 : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %96 = stablehlo.constant dense<1.0> : tensor<f32>
    %97 = stablehlo.select %95, %96, %94 : tensor<i1>, tensor<f32>
    %98 = stablehlo.divide %92, %97 : tensor<f32>
    %99 = stablehlo.add %12, %98 : tensor<f32>
    %100 = stablehlo.convert %8 : (tensor<f32>) -> tensor<f64>
    %101 = stablehlo.constant dense<8.0> : tensor<f64>
    %102 = stablehlo.multiply %100, %101 : tensor<f64>
    %103 = stablehlo.add %99, %8 : tensor<f32>
    %104 = stablehlo.optimization_barrier %56 : tensor<8x2xf32>
    %105 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %106 = stablehlo.reduce(%104 init: %105) applies stablehlo.maximum across dimensions = [1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<8xf32>
    %107 = stablehlo.broadcast_in_dim %106, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %108 = stablehlo.compare LT, %104, %107 : (tensor<8x2xf32>, tensor<8x2xf32>) -> tensor<8x2xi1>
    %109 = stablehlo.broadcast_in_dim %80, dims = [] : (tensor<i32>) -> tensor<8x2xi32>
    %110 = stablehlo.select %108, %109, %65 : tensor<8x2xi1>, tensor<8x2xi32>
    %111 = stablehlo.constant dense<2147483647> : tensor<i32>
    %112 = stablehlo.reduce(%110 init: %111) applies stablehlo.minimum across dimensions = [1] : (tensor<8x2xi32>, tensor<i32>) -> tensor<8xi32>
    %113 = stablehlo.compare EQ, %arg19, %112 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %114 = stablehlo.convert %113 : (tensor<8xi1>) -> tensor<8xf32>
    %115 = stablehlo.constant dense<0.0> : tensor<f32>
    %116 = stablehlo.reduce(%114 init: %115) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %117 = stablehlo.divide %96, %97 : tensor<f32>
    %118 = stablehlo.broadcast_in_dim %117, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %119 = stablehlo.select %88, %118, %87 : tensor<8xi1>, tensor<8xf32>
    %120 = stablehlo.multiply %119, %arg20 : tensor<8xf32>
    %121 = stablehlo.select %83, %120, %87 : tensor<8xi1>, tensor<8xf32>
    %122 = stablehlo.negate %121 : tensor<8xf32>
    %123 = stablehlo.divide %121, %74 : tensor<8xf32>
    %124 = stablehlo.broadcast_in_dim %123, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %125 = stablehlo.multiply %124, %72 : tensor<8x2xf32>
    %126 = stablehlo.broadcast_in_dim %122, dims = [0] : (tensor<8xf32>) -> tensor<8x2xf32>
    %127 = stablehlo.select %67, %126, %68 : tensor<8x2xi1>, tensor<8x2xf32>
    %128 = stablehlo.add %125, %127 : tensor<8x2xf32>
    %129 = stablehlo.select %60, %128, %68 : tensor<8x2xi1>, tensor<8x2xf32>
    %130 = stablehlo.constant dense<0.0> : tensor<f32> loc("class")
    %131 = stablehlo.reduce(%129 init: %130) applies stablehlo.add across dimensions = [0] : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32> loc("class")
    %132 = stablehlo.dot_general %129, %arg6, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x2xf32>, tensor<3x2xf32>) -> tensor<8x3xf32> loc("class")
    %133 = stablehlo.dot_general %53, %129, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<8x2xf32>) -> tensor<3x2xf32> loc("class")
    %134 = stablehlo.select %49, %132, %13 : tensor<8x3xi1>, tensor<8x3xf32> loc("dropout")
    %135 = stablehlo.divide %134, %51 : tensor<8x3xf32> loc("dropout")
    %136 = stablehlo.constant dense<0.001> : tensor<f32> loc("batch_norm")
    %137 = stablehlo.broadcast_in_dim %136, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %138 = stablehlo.add %25, %137 : tensor<3xf32> loc("batch_norm")
    %139 = stablehlo.rsqrt %138 : tensor<3xf32> loc("batch_norm")
    %140 = stablehlo.broadcast_in_dim %19, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %141 = stablehlo.subtract %14, %140 : tensor<8x3xf32> loc("batch_norm")
    %142 = stablehlo.broadcast_in_dim %139, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %143 = stablehlo.multiply %141, %142 : tensor<8x3xf32> loc("batch_norm")
    %144 = stablehlo.constant dense<0.0> : tensor<f32> loc("batch_norm")
    %145 = stablehlo.reduce(%135 init: %144) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %146 = stablehlo.multiply %135, %143 : tensor<8x3xf32> loc("batch_norm")
    %147 = stablehlo.constant dense<0.0> : tensor<f32> loc("batch_norm")
    %148 = stablehlo.reduce(%146 init: %147) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %149 = stablehlo.constant dense<8.0> : tensor<f32> loc("batch_norm")
    %150 = stablehlo.broadcast_in_dim %149, dims = [] : (tensor<f32>) -> tensor<3xf32> loc("batch_norm")
    %151 = stablehlo.divide %145, %150 : tensor<3xf32> loc("batch_norm")
    %152 = stablehlo.broadcast_in_dim %151, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %153 = stablehlo.subtract %135, %152 : tensor<8x3xf32> loc("batch_norm")
    %154 = stablehlo.divide %148, %150 : tensor<3xf32> loc("batch_norm")
    %155 = stablehlo.broadcast_in_dim %154, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %156 = stablehlo.multiply %143, %155 : tensor<8x3xf32> loc("batch_norm")
    %157 = stablehlo.subtract %153, %156 : tensor<8x3xf32> loc("batch_norm")
    %158 = stablehlo.multiply %arg2, %139 : tensor<3xf32> loc("batch_norm")
    %159 = stablehlo.broadcast_in_dim %158, dims = [1] : (tensor<3xf32>) -> tensor<8x3xf32> loc("batch_norm")
    %160 = stablehlo.multiply %157, %159 : tensor<8x3xf32> loc("batch_norm")
    %161 = stablehlo.compare GT, %11, %13 : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<8x3xi1> loc("dense")
    %162 = stablehlo.select %161, %160, %13 : tensor<8x3xi1>, tensor<8x3xf32> loc("dense")
    %163 = stablehlo.constant dense<0.0> : tensor<f32> loc("dense")
    %164 = stablehlo.reduce(%162 init: %163) applies stablehlo.add across dimensions = [0] : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32> loc("dense")
    %165 = stablehlo.dot_general %arg18, %162, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x3xf32>) -> tensor<4x3xf32> loc("dense")
    %166 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<4x3xf32> loc("dense")
    %167 = stablehlo.multiply %166, %arg0 : tensor<4x3xf32> loc("dense")
    %168 = stablehlo.add %165, %167 : tensor<4x3xf32>
    %169 = stablehlo.add %168, %167 : tensor<4x3xf32>
    %170 = stablehlo.broadcast_in_dim %arg8, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %171 = stablehlo.multiply %169, %170 : tensor<4x3xf32>
    %172 = stablehlo.constant dense<0.9> : tensor<f32>
    %173 = stablehlo.broadcast_in_dim %172, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %174 = stablehlo.multiply %arg9, %173 : tensor<4x3xf32>
    %175 = stablehlo.subtract %174, %171 : tensor<4x3xf32>
    %176 = stablehlo.add %arg0, %175 : tensor<4x3xf32>
    %177 = stablehlo.broadcast_in_dim %arg8, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %178 = stablehlo.multiply %164, %177 : tensor<3xf32>
    %179 = stablehlo.broadcast_in_dim %172, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %180 = stablehlo.multiply %arg10, %179 : tensor<3xf32>
    %181 = stablehlo.subtract %180, %178 : tensor<3xf32>
    %182 = stablehlo.add %arg1, %181 : tensor<3xf32>
    %183 = stablehlo.multiply %148, %177 : tensor<3xf32>
    %184 = stablehlo.multiply %arg11, %179 : tensor<3xf32>
    %185 = stablehlo.subtract %184, %183 : tensor<3xf32>
    %186 = stablehlo.add %arg2, %185 : tensor<3xf32>
    %187 = stablehlo.multiply %145, %177 : tensor<3xf32>
    %188 = stablehlo.multiply %arg12, %179 : tensor<3xf32>
    %189 = stablehlo.subtract %188, %187 : tensor<3xf32>
    %190 = stablehlo.add %arg3, %189 : tensor<3xf32>
    %191 = stablehlo.broadcast_in_dim %arg8, dims = [] : (tensor<f32>) -> tensor<3x2xf32>
    %192 = stablehlo.multiply %133, %191 : tensor<3x2xf32>
    %193 = stablehlo.broadcast_in_dim %172, dims = [] : (tensor<f32>) -> tensor<3x2xf32>
    %194 = stablehlo.multiply %arg13, %193 : tensor<3x2xf32>
    %195 = stablehlo.subtract %194, %192 : tensor<3x2xf32>
    %196 = stablehlo.add %arg6, %195 : tensor<3x2xf32>
    %197 = stablehlo.broadcast_in_dim %arg8, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %198 = stablehlo.multiply %131, %197 : tensor<2xf32>
    %199 = stablehlo.broadcast_in_dim %172, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %200 = stablehlo.multiply %arg14, %199 : tensor<2xf32>
    %201 = stablehlo.subtract %200, %198 : tensor<2xf32>
    %202 = stablehlo.add %arg7, %201 : tensor<2xf32>
    %203 = stablehlo.constant dense<1> : tensor<i64>
    %204 = stablehlo.add %arg15, %203 : tensor<i64>
    %205 = stablehlo.convert %92 : (tensor<f32>) -> tensor<f64>
    %206 = stablehlo.reshape %205 : (tensor<f64>) -> tensor<1xf64>
    %207 = stablehlo.convert %94 : (tensor<f32>) -> tensor<f64>
    %208 = stablehlo.reshape %207 : (tensor<f64>) -> tensor<1xf64>
    %209 = stablehlo.reshape %102 : (tensor<f64>) -> tensor<1xf64>
    %210 = stablehlo.broadcast_in_dim %101, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %211 = stablehlo.convert %116 : (tensor<f32>) -> tensor<f64>
    %212 = stablehlo.reshape %211 : (tensor<f64>) -> tensor<1xf64>
    %213 = stablehlo.slice %arg16 [6:7] : (tensor<7xf64>) -> tensor<1xf64>
    %214 = stablehlo.convert %103 : (tensor<f32>) -> tensor<f64>
    %215 = stablehlo.abs %214 : tensor<f64>
    %216 = stablehlo.constant dense<0x7FF0000000000000> : tensor<f64>
    %217 = stablehlo.compare LT, %215, %216 : (tensor<f64>, tensor<f64>) -> tensor<i1>
    %218 = stablehlo.not %217 : tensor<i1>
    %219 = stablehlo.constant dense<0.0> : tensor<f64>
    %220 = stablehlo.broadcast_in_dim %219, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %221 = stablehlo.convert %arg15 : (tensor<i64>) -> tensor<f64>
    %222 = stablehlo.constant dense<1.0> : tensor<f64>
    %223 = stablehlo.add %221, %222 : tensor<f64>
    %224 = stablehlo.compare EQ, %213, %220 : (tensor<1xf64>, tensor<1xf64>) -> tensor<1xi1>
    %225 = stablehlo.broadcast_in_dim %223, dims = [] : (tensor<f64>) -> tensor<1xf64>
    %226 = stablehlo.select %224, %225, %220 : tensor<1xi1>, tensor<1xf64>
    %227 = stablehlo.broadcast_in_dim %218, dims = [] : (tensor<i1>) -> tensor<1xi1>
    %228 = stablehlo.select %227, %226, %220 : tensor<1xi1>, tensor<1xf64>
    %229 = stablehlo.concatenate %206, %208, %209, %210, %212, %210, %228, dim = 0 : (tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>, tensor<1xf64>) -> tensor<7xf64>
    %230 = stablehlo.add %arg16, %229 : tensor<7xf64>
    return %176, %182, %186, %190, %40, %43, %196, %202, %175, %181, %185, %189, %195, %201, %204, %230 : tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3x2xf32>, tensor<2xf32>, tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3x2xf32>, tensor<2xf32>, tensor<i64>, tensor<7xf64>
  }
  func.func private @random_bits_1x2(%key: tensor<2xui32>, %row: tensor<ui32>) -> tensor<1x2xui32> {
    %0 = stablehlo.slice %key [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<1x2xui32>
    %3 = stablehlo.slice %key [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %4 = stablehlo.reshape %3 : (tensor<1xui32>) -> tensor<ui32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<ui32>) -> tensor<1x2xui32>
    %6 = stablehlo.constant dense<466688986> : tensor<1x2xui32>
    %7 = stablehlo.xor %2, %5 : tensor<1x2xui32>
    %8 = stablehlo.xor %7, %6 : tensor<1x2xui32>
    %9 = stablehlo.iota dim = 1 : tensor<1x2xui32>
    %10 = stablehlo.iota dim = 0 : tensor<1x2xui32>
    %11 = stablehlo.broadcast_in_dim %row, dims = [] : (tensor<ui32>) -> tensor<1x2xui32>
    %12 = stablehlo.add %11, %10 : tensor<1x2xui32>
    %13 = stablehlo.add %9, %2 : tensor<1x2xui32>
    %14 = stablehlo.add %12, %5 : tensor<1x2xui32>
    %15 = stablehlo.add %13, %14 : tensor<1x2xui32>
    %16 = stablehlo.constant dense<13> : tensor<1x2xui32>
    %17 = stablehlo.constant dense<19> : tensor<1x2xui32>
    %18 = stablehlo.shift_left %14, %16 : tensor<1x2xui32>
    %19 = stablehlo.shift_right_logical %14, %17 : tensor<1x2xui32>
    %20 = stablehlo.or %18, %19 : tensor<1x2xui32>
    %21 = stablehlo.xor %20, %15 : tensor<1x2xui32>
    %22 = stablehlo.add %15, %21 : tensor<1x2xui32>
    %23 = stablehlo.constant dense<15> : tensor<1x2xui32>
    %24 = stablehlo.constant dense<17> : tensor<1x2xui32>
    %25 = stablehlo.shift_left %21, %23 : tensor<1x2xui32>
    %26 = stablehlo.shift_right_logical %21, %24 : tensor<1x2xui32>
    %27 = stablehlo.or %25, %26 : tensor<1x2xui32>
    %28 = stablehlo.xor %27, %22 : tensor<1x2xui32>
    %29 = stablehlo.add %22, %28 : tensor<1x2xui32>
    %30 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %31 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %32 = stablehlo.shift_left %28, %30 : tensor<1x2xui32>
    %33 = stablehlo.shift_right_logical %28, %31 : tensor<1x2xui32>
    %34 = stablehlo.or %32, %33 : tensor<1x2xui32>
    %35 = stablehlo.xor %34, %29 : tensor<1x2xui32>
    %36 = stablehlo.add %29, %35 : tensor<1x2xui32>
    %37 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %38 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %39 = stablehlo.shift_left %35, %37 : tensor<1x2xui32>
    %40 = stablehlo.shift_right_logical %35, %38 : tensor<1x2xui32>
    %41 = stablehlo.or %39, %40 : tensor<1x2xui32>
    %42 = stablehlo.xor %41, %36 : tensor<1x2xui32>
    %43 = stablehlo.add %36, %5 : tensor<1x2xui32>
    %44 = stablehlo.constant dense<1> : tensor<1x2xui32>
    %45 = stablehlo.add %42, %8 : tensor<1x2xui32>
    %46 = stablehlo.add %45, %44 : tensor<1x2xui32>
    %47 = stablehlo.add %43, %46 : tensor<1x2xui32>
    %48 = stablehlo.constant dense<17> : tensor<1x2xui32>
    %49 = stablehlo.constant dense<15> : tensor<1x2xui32>
    %50 = stablehlo.shift_left %46, %48 : tensor<1x2xui32>
    %51 = stablehlo.shift_right_logical %46, %49 : tensor<1x2xui32>
    %52 = stablehlo.or %50, %51 : tensor<1x2xui32>
    %53 = stablehlo.xor %52, %47 : tensor<1x2xui32>
    %54 = stablehlo.add %47, %53 : tensor<1x2xui32>
    %55 = stablehlo.constant dense<29> : tensor<1x2xui32>
    %56 = stablehlo.constant dense<3> : tensor<1x2xui32>
    %57 = stablehlo.shift_left %53, %55 : tensor<1x2xui32>
    %58 = stablehlo.shift_right_logical %53, %56 : tensor<1x2xui32>
    %59 = stablehlo.or %57, %58 : tensor<1x2xui32>
    %60 = stablehlo.xor %59, %54 : tensor<1x2xui32>
    %61 = stablehlo.add %54, %60 : tensor<1x2xui32>
    %62 = stablehlo.constant dense<16> : tensor<1x2xui32>
    %63 = stablehlo.constant dense<16> : tensor<1x2xui32>
    %64 = stablehlo.shift_left %60, %62 : tensor<1x2xui32>
    %65 = stablehlo.shift_right_logical %60, %63 : tensor<1x2xui32>
    %66 = stablehlo.or %64, %65 : tensor<1x2xui32>
    %67 = stablehlo.xor %66, %61 : tensor<1x2xui32>
    %68 = stablehlo.add %61, %67 : tensor<1x2xui32>
    %69 = stablehlo.constant dense<24> : tensor<1x2xui32>
    %70 = stablehlo.constant dense<8> : tensor<1x2xui32>
    %71 = stablehlo.shift_left %67, %69 : tensor<1x2xui32>
    %72 = stablehlo.shift_right_logical %67, %70 : tensor<1x2xui32>
    %73 = stablehlo.or %71, %72 : tensor<1x2xui32>
    %74 = stablehlo.xor %73, %68 : tensor<1x2xui32>
    %75 = stablehlo.add %68, %8 : tensor<1x2xui32>
    %76 = stablehlo.constant dense<2> : tensor<1x2xui32>
    %77 = stablehlo.add %74, %2 : tensor<1x2xui32>
    %78 = stablehlo.add %77, %76 : tensor<1x2xui32>
    %79 = stablehlo.add %75, %78 : tensor<1x2xui32>
    %80 = stablehlo.constant dense<13> : tensor<1x2xui32>
    %81 = stablehlo.constant dense<19> : tensor<1x2xui32>
    %82 = stablehlo.shift_left %78, %80 : tensor<1x2xui32>
    %83 = stablehlo.shift_right_logical %78, %81 : tensor<1x2xui32>
    %84 = stablehlo.or %82, %83 : tensor<1x2xui32>
    %85 = stablehlo.xor %84, %79 : tensor<1x2xui32>
    %86 = stablehlo.add %79, %85 : tensor<1x2xui32>
    %87 = stablehlo.constant dense<15> : tensor<1x2xui32>
    %88 = stablehlo.constant dense<17> : tensor<1x2xui32>
    %89 = stablehlo.shift_left %85, %87 : tensor<1x2xui32>
    %90 = stablehlo.shift_right_logical %85, %88 : tensor<1x2xui32>
    %91 = stablehlo.or %89, %90 : tensor<1x2xui32>
    %92 = stablehlo.xor %91, %86 : tensor<1x2xui32>
    %93 = stablehlo.add %86, %92 : tensor<1x2xui32>
    %94 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %95 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %96 = stablehlo.shift_left %92, %94 : tensor<1x2xui32>
    %97 = stablehlo.shift_right_logical %92, %95 : tensor<1x2xui32>
    %98 = stablehlo.or %96, %97 : tensor<1x2xui32>
    %99 = stablehlo.xor %98, %93 : tensor<1x2xui32>
    %100 = stablehlo.add %93, %99 : tensor<1x2xui32>
    %101 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %102 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %103 = stablehlo.shift_left %99, %101 : tensor<1x2xui32>
    %104 = stablehlo.shift_right_logical %99, %102 : tensor<1x2xui32>
    %105 = stablehlo.or %103, %104 : tensor<1x2xui32>
    %106 = stablehlo.xor %105, %100 : tensor<1x2xui32>
    %107 = stablehlo.add %100, %2 : tensor<1x2xui32>
    %108 = stablehlo.constant dense<3> : tensor<1x2xui32>
    %109 = stablehlo.add %106, %5 : tensor<1x2xui32>
    %110 = stablehlo.add %109, %108 : tensor<1x2xui32>
    %111 = stablehlo.add %107, %110 : tensor<1x2xui32>
    %112 = stablehlo.constant dense<17> : tensor<1x2xui32>
    %113 = stablehlo.constant dense<15> : tensor<1x2xui32>
    %114 = stablehlo.shift_left %110, %112 : tensor<1x2xui32>
    %115 = stablehlo.shift_right_logical %110, %113 : tensor<1x2xui32>
    %116 = stablehlo.or %114, %115 : tensor<1x2xui32>
    %117 = stablehlo.xor %116, %111 : tensor<1x2xui32>
    %118 = stablehlo.add %111, %117 : tensor<1x2xui32>
    %119 = stablehlo.constant dense<29> : tensor<1x2xui32>
    %120 = stablehlo.constant dense<3> : tensor<1x2xui32>
    %121 = stablehlo.shift_left %117, %119 : tensor<1x2xui32>
    %122 = stablehlo.shift_right_logical %117, %120 : tensor<1x2xui32>
    %123 = stablehlo.or %121, %122 : tensor<1x2xui32>
    %124 = stablehlo.xor %123, %118 : tensor<1x2xui32>
    %125 = stablehlo.add %118, %124 : tensor<1x2xui32>
    %126 = stablehlo.constant dense<16> : tensor<1x2xui32>
    %127 = stablehlo.constant dense<16> : tensor<1x2xui32>
    %128 = stablehlo.shift_left %124, %126 : tensor<1x2xui32>
    %129 = stablehlo.shift_right_logical %124, %127 : tensor<1x2xui32>
    %130 = stablehlo.or %128, %129 : tensor<1x2xui32>
    %131 = stablehlo.xor %130, %125 : tensor<1x2xui32>
    %132 = stablehlo.add %125, %131 : tensor<1x2xui32>
    %133 = stablehlo.constant dense<24> : tensor<1x2xui32>
    %134 = stablehlo.constant dense<8> : tensor<1x2xui32>
    %135 = stablehlo.shift_left %131, %133 : tensor<1x2xui32>
    %136 = stablehlo.shift_right_logical %131, %134 : tensor<1x2xui32>
    %137 = stablehlo.or %135, %136 : tensor<1x2xui32>
    %138 = stablehlo.xor %137, %132 : tensor<1x2xui32>
    %139 = stablehlo.add %132, %5 : tensor<1x2xui32>
    %140 = stablehlo.constant dense<4> : tensor<1x2xui32>
    %141 = stablehlo.add %138, %8 : tensor<1x2xui32>
    %142 = stablehlo.add %141, %140 : tensor<1x2xui32>
    %143 = stablehlo.add %139, %142 : tensor<1x2xui32>
    %144 = stablehlo.constant dense<13> : tensor<1x2xui32>
    %145 = stablehlo.constant dense<19> : tensor<1x2xui32>
    %146 = stablehlo.shift_left %142, %144 : tensor<1x2xui32>
    %147 = stablehlo.shift_right_logical %142, %145 : tensor<1x2xui32>
    %148 = stablehlo.or %146, %147 : tensor<1x2xui32>
    %149 = stablehlo.xor %148, %143 : tensor<1x2xui32>
    %150 = stablehlo.add %143, %149 : tensor<1x2xui32>
    %151 = stablehlo.constant dense<15> : tensor<1x2xui32>
    %152 = stablehlo.constant dense<17> : tensor<1x2xui32>
    %153 = stablehlo.shift_left %149, %151 : tensor<1x2xui32>
    %154 = stablehlo.shift_right_logical %149, %152 : tensor<1x2xui32>
    %155 = stablehlo.or %153, %154 : tensor<1x2xui32>
    %156 = stablehlo.xor %155, %150 : tensor<1x2xui32>
    %157 = stablehlo.add %150, %156 : tensor<1x2xui32>
    %158 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %159 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %160 = stablehlo.shift_left %156, %158 : tensor<1x2xui32>
    %161 = stablehlo.shift_right_logical %156, %159 : tensor<1x2xui32>
    %162 = stablehlo.or %160, %161 : tensor<1x2xui32>
    %163 = stablehlo.xor %162, %157 : tensor<1x2xui32>
    %164 = stablehlo.add %157, %163 : tensor<1x2xui32>
    %165 = stablehlo.constant dense<6> : tensor<1x2xui32>
    %166 = stablehlo.constant dense<26> : tensor<1x2xui32>
    %167 = stablehlo.shift_left %163, %165 : tensor<1x2xui32>
    %168 = stablehlo.shift_right_logical %163, %166 : tensor<1x2xui32>
    %169 = stablehlo.or %167, %168 : tensor<1x2xui32>
    %170 = stablehlo.xor %169, %164 : tensor<1x2xui32>
    %171 = stablehlo.add %164, %8 : tensor<1x2xui32>
    %172 = stablehlo.constant dense<5> : tensor<1x2xui32>
    %173 = stablehlo.add %170, %2 : tensor<1x2xui32>
    %174 = stablehlo.add %173, %172 : tensor<1x2xui32>
    return %171 : tensor<1x2xui32>
  }
  func.func private @random_bits_8x3(%key: tensor<2xui32>, %row: tensor<ui32>) -> tensor<8x3xui32> {
    %0 = stablehlo.slice %key [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<8x3xui32>
    %3 = stablehlo.slice %key [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %4 = stablehlo.reshape %3 : (tensor<1xui32>) -> tensor<ui32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<ui32>) -> tensor<8x3xui32>
    %6 = stablehlo.constant dense<466688986> : tensor<8x3xui32>
    %7 = stablehlo.xor %2, %5 : tensor<8x3xui32>
    %8 = stablehlo.xor %7, %6 : tensor<8x3xui32>
    %9 = stablehlo.iota dim = 1 : tensor<8x3xui32>
    %10 = stablehlo.iota dim = 0 : tensor<8x3xui32>
    %11 = stablehlo.broadcast_in_dim %row, dims = [] : (tensor<ui32>) -> tensor<8x3xui32>
    %12 = stablehlo.add %11, %10 : tensor<8x3xui32>
    %13 = stablehlo.add %9, %2 : tensor<8x3xui32>
    %14 = stablehlo.add %12, %5 : tensor<8x3xui32>
    %15 = stablehlo.add %13, %14 : tensor<8x3xui32>
    %16 = stablehlo.constant dense<13> : tensor<8x3xui32>
    %17 = stablehlo.constant dense<19> : tensor<8x3xui32>
    %18 = stablehlo.shift_left %14, %16 : tensor<8x3xui32>
    %19 = stablehlo.shift_right_logical %14, %17 : tensor<8x3xui32>
    %20 = stablehlo.or %18, %19 : tensor<8x3xui32>
    %21 = stablehlo.xor %20, %15 : tensor<8x3xui32>
    %22 = stablehlo.add %15, %21 : tensor<8x3xui32>
    %23 = stablehlo.constant dense<15> : tensor<8x3xui32>
    %24 = stablehlo.constant dense<17> : tensor<8x3xui32>
    %25 = stablehlo.shift_left %21, %23 : tensor<8x3xui32>
    %26 = stablehlo.shift_right_logical %21, %24 : tensor<8x3xui32>
    %27 = stablehlo.or %25, %26 : tensor<8x3xui32>
    %28 = stablehlo.xor %27, %22 : tensor<8x3xui32>
    %29 = stablehlo.add %22, %28 : tensor<8x3xui32>
    %30 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %31 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %32 = stablehlo.shift_left %28, %30 : tensor<8x3xui32>
    %33 = stablehlo.shift_right_logical %28, %31 : tensor<8x3xui32>
    %34 = stablehlo.or %32, %33 : tensor<8x3xui32>
    %35 = stablehlo.xor %34, %29 : tensor<8x3xui32>
    %36 = stablehlo.add %29, %35 : tensor<8x3xui32>
    %37 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %38 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %39 = stablehlo.shift_left %35, %37 : tensor<8x3xui32>
    %40 = stablehlo.shift_right_logical %35, %38 : tensor<8x3xui32>
    %41 = stablehlo.or %39, %40 : tensor<8x3xui32>
    %42 = stablehlo.xor %41, %36 : tensor<8x3xui32>
    %43 = stablehlo.add %36, %5 : tensor<8x3xui32>
    %44 = stablehlo.constant dense<1> : tensor<8x3xui32>
    %45 = stablehlo.add %42, %8 : tensor<8x3xui32>
    %46 = stablehlo.add %45, %44 : tensor<8x3xui32>
    %47 = stablehlo.add %43, %46 : tensor<8x3xui32>
    %48 = stablehlo.constant dense<17> : tensor<8x3xui32>
    %49 = stablehlo.constant dense<15> : tensor<8x3xui32>
    %50 = stablehlo.shift_left %46, %48 : tensor<8x3xui32>
    %51 = stablehlo.shift_right_logical %46, %49 : tensor<8x3xui32>
    %52 = stablehlo.or %50, %51 : tensor<8x3xui32>
    %53 = stablehlo.xor %52, %47 : tensor<8x3xui32>
    %54 = stablehlo.add %47, %53 : tensor<8x3xui32>
    %55 = stablehlo.constant dense<29> : tensor<8x3xui32>
    %56 = stablehlo.constant dense<3> : tensor<8x3xui32>
    %57 = stablehlo.shift_left %53, %55 : tensor<8x3xui32>
    %58 = stablehlo.shift_right_logical %53, %56 : tensor<8x3xui32>
    %59 = stablehlo.or %57, %58 : tensor<8x3xui32>
    %60 = stablehlo.xor %59, %54 : tensor<8x3xui32>
    %61 = stablehlo.add %54, %60 : tensor<8x3xui32>
    %62 = stablehlo.constant dense<16> : tensor<8x3xui32>
    %63 = stablehlo.constant dense<16> : tensor<8x3xui32>
    %64 = stablehlo.shift_left %60, %62 : tensor<8x3xui32>
    %65 = stablehlo.shift_right_logical %60, %63 : tensor<8x3xui32>
    %66 = stablehlo.or %64, %65 : tensor<8x3xui32>
    %67 = stablehlo.xor %66, %61 : tensor<8x3xui32>
    %68 = stablehlo.add %61, %67 : tensor<8x3xui32>
    %69 = stablehlo.constant dense<24> : tensor<8x3xui32>
    %70 = stablehlo.constant dense<8> : tensor<8x3xui32>
    %71 = stablehlo.shift_left %67, %69 : tensor<8x3xui32>
    %72 = stablehlo.shift_right_logical %67, %70 : tensor<8x3xui32>
    %73 = stablehlo.or %71, %72 : tensor<8x3xui32>
    %74 = stablehlo.xor %73, %68 : tensor<8x3xui32>
    %75 = stablehlo.add %68, %8 : tensor<8x3xui32>
    %76 = stablehlo.constant dense<2> : tensor<8x3xui32>
    %77 = stablehlo.add %74, %2 : tensor<8x3xui32>
    %78 = stablehlo.add %77, %76 : tensor<8x3xui32>
    %79 = stablehlo.add %75, %78 : tensor<8x3xui32>
    %80 = stablehlo.constant dense<13> : tensor<8x3xui32>
    %81 = stablehlo.constant dense<19> : tensor<8x3xui32>
    %82 = stablehlo.shift_left %78, %80 : tensor<8x3xui32>
    %83 = stablehlo.shift_right_logical %78, %81 : tensor<8x3xui32>
    %84 = stablehlo.or %82, %83 : tensor<8x3xui32>
    %85 = stablehlo.xor %84, %79 : tensor<8x3xui32>
    %86 = stablehlo.add %79, %85 : tensor<8x3xui32>
    %87 = stablehlo.constant dense<15> : tensor<8x3xui32>
    %88 = stablehlo.constant dense<17> : tensor<8x3xui32>
    %89 = stablehlo.shift_left %85, %87 : tensor<8x3xui32>
    %90 = stablehlo.shift_right_logical %85, %88 : tensor<8x3xui32>
    %91 = stablehlo.or %89, %90 : tensor<8x3xui32>
    %92 = stablehlo.xor %91, %86 : tensor<8x3xui32>
    %93 = stablehlo.add %86, %92 : tensor<8x3xui32>
    %94 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %95 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %96 = stablehlo.shift_left %92, %94 : tensor<8x3xui32>
    %97 = stablehlo.shift_right_logical %92, %95 : tensor<8x3xui32>
    %98 = stablehlo.or %96, %97 : tensor<8x3xui32>
    %99 = stablehlo.xor %98, %93 : tensor<8x3xui32>
    %100 = stablehlo.add %93, %99 : tensor<8x3xui32>
    %101 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %102 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %103 = stablehlo.shift_left %99, %101 : tensor<8x3xui32>
    %104 = stablehlo.shift_right_logical %99, %102 : tensor<8x3xui32>
    %105 = stablehlo.or %103, %104 : tensor<8x3xui32>
    %106 = stablehlo.xor %105, %100 : tensor<8x3xui32>
    %107 = stablehlo.add %100, %2 : tensor<8x3xui32>
    %108 = stablehlo.constant dense<3> : tensor<8x3xui32>
    %109 = stablehlo.add %106, %5 : tensor<8x3xui32>
    %110 = stablehlo.add %109, %108 : tensor<8x3xui32>
    %111 = stablehlo.add %107, %110 : tensor<8x3xui32>
    %112 = stablehlo.constant dense<17> : tensor<8x3xui32>
    %113 = stablehlo.constant dense<15> : tensor<8x3xui32>
    %114 = stablehlo.shift_left %110, %112 : tensor<8x3xui32>
    %115 = stablehlo.shift_right_logical %110, %113 : tensor<8x3xui32>
    %116 = stablehlo.or %114, %115 : tensor<8x3xui32>
    %117 = stablehlo.xor %116, %111 : tensor<8x3xui32>
    %118 = stablehlo.add %111, %117 : tensor<8x3xui32>
    %119 = stablehlo.constant dense<29> : tensor<8x3xui32>
    %120 = stablehlo.constant dense<3> : tensor<8x3xui32>
    %121 = stablehlo.shift_left %117, %119 : tensor<8x3xui32>
    %122 = stablehlo.shift_right_logical %117, %120 : tensor<8x3xui32>
    %123 = stablehlo.or %121, %122 : tensor<8x3xui32>
    %124 = stablehlo.xor %123, %118 : tensor<8x3xui32>
    %125 = stablehlo.add %118, %124 : tensor<8x3xui32>
    %126 = stablehlo.constant dense<16> : tensor<8x3xui32>
    %127 = stablehlo.constant dense<16> : tensor<8x3xui32>
    %128 = stablehlo.shift_left %124, %126 : tensor<8x3xui32>
    %129 = stablehlo.shift_right_logical %124, %127 : tensor<8x3xui32>
    %130 = stablehlo.or %128, %129 : tensor<8x3xui32>
    %131 = stablehlo.xor %130, %125 : tensor<8x3xui32>
    %132 = stablehlo.add %125, %131 : tensor<8x3xui32>
    %133 = stablehlo.constant dense<24> : tensor<8x3xui32>
    %134 = stablehlo.constant dense<8> : tensor<8x3xui32>
    %135 = stablehlo.shift_left %131, %133 : tensor<8x3xui32>
    %136 = stablehlo.shift_right_logical %131, %134 : tensor<8x3xui32>
    %137 = stablehlo.or %135, %136 : tensor<8x3xui32>
    %138 = stablehlo.xor %137, %132 : tensor<8x3xui32>
    %139 = stablehlo.add %132, %5 : tensor<8x3xui32>
    %140 = stablehlo.constant dense<4> : tensor<8x3xui32>
    %141 = stablehlo.add %138, %8 : tensor<8x3xui32>
    %142 = stablehlo.add %141, %140 : tensor<8x3xui32>
    %143 = stablehlo.add %139, %142 : tensor<8x3xui32>
    %144 = stablehlo.constant dense<13> : tensor<8x3xui32>
    %145 = stablehlo.constant dense<19> : tensor<8x3xui32>
    %146 = stablehlo.shift_left %142, %144 : tensor<8x3xui32>
    %147 = stablehlo.shift_right_logical %142, %145 : tensor<8x3xui32>
    %148 = stablehlo.or %146, %147 : tensor<8x3xui32>
    %149 = stablehlo.xor %148, %143 : tensor<8x3xui32>
    %150 = stablehlo.add %143, %149 : tensor<8x3xui32>
    %151 = stablehlo.constant dense<15> : tensor<8x3xui32>
    %152 = stablehlo.constant dense<17> : tensor<8x3xui32>
    %153 = stablehlo.shift_left %149, %151 : tensor<8x3xui32>
    %154 = stablehlo.shift_right_logical %149, %152 : tensor<8x3xui32>
    %155 = stablehlo.or %153, %154 : tensor<8x3xui32>
    %156 = stablehlo.xor %155, %150 : tensor<8x3xui32>
    %157 = stablehlo.add %150, %156 : tensor<8x3xui32>
    %158 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %159 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %160 = stablehlo.shift_left %156, %158 : tensor<8x3xui32>
    %161 = stablehlo.shift_right_logical %156, %159 : tensor<8x3xui32>
    %162 = stablehlo.or %160, %161 : tensor<8x3xui32>
    %163 = stablehlo.xor %162, %157 : tensor<8x3xui32>
    %164 = stablehlo.add %157, %163 : tensor<8x3xui32>
    %165 = stablehlo.constant dense<6> : tensor<8x3xui32>
    %166 = stablehlo.constant dense<26> : tensor<8x3xui32>
    %167 = stablehlo.shift_left %163, %165 : tensor<8x3xui32>
    %168 = stablehlo.shift_right_logical %163, %166 : tensor<8x3xui32>
    %169 = stablehlo.or %167, %168 : tensor<8x3xui32>
    %170 = stablehlo.xor %169, %164 : tensor<8x3xui32>
    %171 = stablehlo.add %164, %8 : tensor<8x3xui32>
    %172 = stablehlo.constant dense<5> : tensor<8x3xui32>
    %173 = stablehlo.add %170, %2 : tensor<8x3xui32>
    %174 = stablehlo.add %173, %172 : tensor<8x3xui32>
    return %171 : tensor<8x3xui32>
  }
}

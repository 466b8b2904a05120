module @sharded_gradient attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  func.func public @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} loc("x"), %arg1: tensor<4x6xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>} loc("kernel"), %arg2: tensor<6x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>} loc("out")) -> (tensor<4x6xf32> {jax.result_info = "kernel", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, tensor<f32> {jax.result_info = "loss", sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    %1 = stablehlo.tanh %0 : tensor<8x6xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{"data"}, {"model"}]> : tensor<8x6xf32>
    %3 = stablehlo.dot_general %2, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x6xf32>, tensor<6x3xf32>) -> tensor<8x3xf32>
    %4 = stablehlo.multiply %3, %3 : tensor<8x3xf32>
    %5 = stablehlo.constant dense<0.0> : tensor<f32>
    %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x3xf32>, tensor<f32>) -> tensor<f32>
    %7 = stablehlo.constant dense<24.0> : tensor<f32>
    %8 = stablehlo.divide %6, %7 : tensor<f32>
    %9 = stablehlo.constant dense<1.0> : tensor<f32>
    %10 = stablehlo.constant dense<0.041666668> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
    %12 = stablehlo.multiply %11, %3 : tensor<8x3xf32>
    %13 = stablehlo.add %12, %12 : tensor<8x3xf32>
    %14 = stablehlo.dot_general %13, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<6x3xf32>) -> tensor<8x6xf32>
    %15 = sdy.sharding_constraint %14 <@mesh, [{"data"}, {"model"}]> : tensor<8x6xf32>
    %16 = stablehlo.multiply %1, %1 : tensor<8x6xf32>
    %17 = stablehlo.broadcast_in_dim %9, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
    %18 = stablehlo.subtract %17, %16 : tensor<8x6xf32>
    %19 = stablehlo.multiply %15, %18 : tensor<8x6xf32>
    %20 = stablehlo.dot_general %arg0, %19, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %21 = stablehlo.constant dense<0.1> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %21, dims = [] : (tensor<f32>) -> tensor<4x6xf32>
    %23 = stablehlo.multiply %20, %22 : tensor<4x6xf32>
    %24 = stablehlo.subtract %arg1, %23 : tensor<4x6xf32>
    %25 = sdy.sharding_constraint %24 <@mesh, [{}, {"model"}]> : tensor<4x6xf32>
    return %25, %8 : tensor<4x6xf32>, tensor<f32>
  }
}

module @all_reduce attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> loc("gradient"), %arg1: tensor<i32> loc("count")) -> (tensor<4x3xf32> {jax.result_info = "mean"}, tensor<2x3xf32> {jax.result_info = "own rows"}, tensor<4x3xf32> {jax.result_info = "all rows"}, tensor<4x3xf32> {jax.result_info = "next"}, tensor<ui32> {jax.result_info = "replica"}) {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %4 = "stablehlo.all_reduce"(%arg1) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%5: tensor<i32>, %6: tensor<i32>):
      %7 = stablehlo.add %5, %6 : tensor<i32>
      stablehlo.return %7 : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    %8 = stablehlo.convert %4 : (tensor<i32>) -> tensor<f32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %10 = stablehlo.divide %0, %9 : tensor<4x3xf32>
    %11 = "stablehlo.reduce_scatter"(%arg0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
    ^bb0(%12: tensor<f32>, %13: tensor<f32>):
      %14 = stablehlo.add %12, %13 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<4x3xf32>) -> tensor<2x3xf32>
    %15 = "stablehlo.all_gather"(%11) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x3xf32>) -> tensor<4x3xf32>
    %16 = "stablehlo.collective_permute"(%arg0) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %17 = stablehlo.replica_id : tensor<ui32>
    return %10, %11, %15, %16, %17 : tensor<4x3xf32>, tensor<2x3xf32>, tensor<4x3xf32>, tensor<4x3xf32>, tensor<ui32>
  }
}
